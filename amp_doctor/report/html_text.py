"""Styled lines, findings and values -> HTML: whatever comes from a user is escaped here, and nowhere else."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING

from amp_doctor.catalog import url
from amp_doctor.report.text import clean, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amp_doctor.finding import Finding
    from amp_doctor.report.text import Line

# In JSON inside a script element: what could end the element, begin a comment in it, or end a line of JavaScript.
_AWAKE = re.compile("[<>&\u2028\u2029]")
# Half a character, as in a file name that is no UTF-8, can be written to no file; it is shown by its number.
_HALF = re.compile("[\ud800-\udfff]")


def embedded(values: object) -> str:
    """Values as JSON that can stand inside a script element, whatever strings are in it."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    whole = _HALF.sub(lambda met: f"\\\\u{ord(met[0]):04x}", text)
    return _AWAKE.sub(lambda met: f"\\u{ord(met[0]):04x}", whole)


def words(text: str) -> str:
    """Text that can stand between tags and in quoted attributes; control characters are replaced."""
    return escape(_HALF.sub(lambda met: f"\\u{ord(met[0]):04x}", clean(text)))


def tag(name: str, inner: str, **attributes: str | None) -> str:
    """An element; `inner` is HTML already, attributes are text, None leaves one out, `_` stands for `-`."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{words(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{inner}</{name}>"


def rows(lines: Iterable[Line]) -> list[tuple[str, str, str]]:
    """Lines of the text report, set in one column each -> label, text, style."""
    out: list[tuple[str, str, str]] = []
    for line in lines:
        drawn = any(style == "trail" for _, style in line)  # a curve, which the page draws better
        parts = [(text, style) for text, style in line if text.strip() and not (drawn and style != "dim")]
        if not parts:
            continue
        label = ""
        if (len(parts) > 1 or drawn) and parts[0][0].rstrip().endswith(":"):
            label = parts.pop(0)[0].strip().rstrip(":")
        style = next((style for _, style in parts if style in ("error", "warning", "good", "note")), "")
        out.append((label, "".join(text for text, _ in parts).strip().removeprefix("- "), style))
    return out


def listed(told: Sequence[tuple[str, str, str]]) -> str:
    """Label and text side by side; a row without a label continues the one above."""
    out: list[str] = []
    for label, text, style in told:
        out.append(tag("dt", words(label)) if label or not out else "")
        out.append(tag("dd", words(text), class_=style or None) if text else "")
    return tag("dl", "".join(out), class_="facts") if out else ""


def bulleted(told: Sequence[tuple[str, str, str]]) -> str:
    """A list of paragraphs."""
    return tag("ul", "".join(tag("li", words(text)) for _, text, _ in told)) if told else ""


def finding_item(finding: Finding, anchor: str, about: str, line: str = "") -> str:
    """One finding; `about` is HTML told below its message, `line` the text of the line of source it stands at."""
    severity = finding.severity.value
    code = tag("a", words(finding.code), href=url(finding.code), rel="noreferrer noopener", target="_blank")
    head = (
        tag("span", words(severity), class_=f"badge {severity}")
        + f" {tag('b', code)} {tag('span', words(finding.name), class_='slug')} "
        + tag("span", words(place(finding)), class_="place")
    )
    quoted = tag("pre", tag("code", words(line))) if line.strip() else ""
    return tag("li", f"{tag('p', head)}{tag('p', words(finding.message))}{quoted}{about}", id=anchor, class_=severity)


def numbered(names: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """(name, number) pairs -> the numbers by name."""
    out: dict[str, list[int]] = {}
    for name, number in names:
        out.setdefault(name, []).append(number)
    return out


def number(value: float) -> float | None:
    """A number as JSON has it; None for NaN and infinities."""
    return value if value - value == 0 else None
