"""The first look at a file: whether it has to be analysed, and if not, whether it can be read at all."""

from __future__ import annotations

from amp_doctor.errors import ReadError
from amp_doctor.lint.gate import relevant
from amp_doctor.lint.result import FileReport


def gated(raw: bytes) -> bool:
    """True when the file has to be looked at closer: it mentions mixed precision, or us in a comment."""
    return relevant(raw) or b"amp-doctor" in raw or (b"noqa" in raw and _excuses(raw))


def _excuses(raw: bytes) -> bool:
    from re import IGNORECASE, search

    return search(rb"noqa[^\r\n]*AMP", raw, IGNORECASE) is not None


def glance(raw: bytes, path: str, parse: bool) -> FileReport:
    """The report on a file that is not gated. With `parse` it says as well whether it is Python at all."""
    notebook = path.endswith(".ipynb")
    if notebook or not raw.isascii():
        from amp_doctor.lint.source import parse_source

        try:
            parse_source(raw, path)
        except ReadError as error:
            return FileReport(path, error=error.reason)
    return _parsed(raw, path) if parse and not notebook else FileReport(path)


def _parsed(raw: bytes, path: str) -> FileReport:
    import symtable
    import warnings

    with warnings.catch_warnings():
        # Escapes that Python warns about are other linters' business.
        warnings.simplefilter("ignore")
        try:
            # The cheapest way to have Python parse something: no code is made, and no tree.
            symtable.symtable(raw, path, "exec")  # type: ignore[arg-type]  # bytes declare their own encoding
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            from amp_doctor.lint.examine import examine

            # It is no Python, or written for a newer Python than the one we run on.
            return examine(raw, path, None, None)
    return FileReport(path)
