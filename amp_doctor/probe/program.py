"""What is to be run -> its code and what Python would put into `__main__`, `sys.argv` and `sys.path` for it.

Follows `Modules/main.c` and `runpy`: scripts, directories and zip files with a `__main__.py`, compiled files, and `-m`.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import pkgutil
import sys
import tokenize
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from typing import TYPE_CHECKING, Any

from amp_doctor.errors import ScriptError

if TYPE_CHECKING:
    from types import CodeType

# Words that people put before the script out of habit.
LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "srun")


@dataclass(frozen=True, slots=True)
class Target:
    """What to run: a script by its `path`, or a `module` as `python -m` does; one of the two is None."""

    path: str | None
    module: str | None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """`attributes` are those of the module `__main__`; `path0` is the first entry of `sys.path`."""

    code: CodeType
    argv0: str
    path0: str
    attributes: dict[str, Any] = field(default_factory=dict)


def program_of(target: Target) -> Program:
    """The program; a ScriptError when there is none, a SyntaxError when Python would print one."""
    if target.module is not None:
        return _module(target.module)
    path = target.path or ""
    if not os.path.exists(path):
        raise ScriptError(_missing(path))
    importer = pkgutil.get_importer(path)
    if os.path.isdir(path) or (importer is not None and hasattr(importer, "archive")):
        return _container(path, importer)
    return _file(path)


def absolute(path: str) -> str:
    """`path` from the root, not normalised: this is how Python makes `__file__` absolute."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _missing(path: str) -> str:
    if path in LAUNCHERS:
        return f"no such script: {path} (give the script itself, without `{path}` before it)"
    if path == "-":
        return "a script on stdin cannot be probed; save it to a file"
    return f"no such script: {path}"


def _file(path: str) -> Program:
    full = absolute(path)
    path0 = os.path.dirname(os.path.realpath(path))
    if path.endswith(".pyc"):
        code = _compiled(path)
        return Program(code, path, path0, _attributes(full, SourcelessFileLoader("__main__", full)))
    try:
        with open(path, "rb") as stream:
            text = stream.read()
    except OSError as error:
        raise ScriptError(f"cannot read {path}: {error.strerror or error}") from error
    if b"\0" in text:
        raise ScriptError(f"{path} is a binary file, not a Python script")
    if path.endswith(".ipynb"):
        raise ScriptError(f"{path} is a notebook; use `with Probe(steps=50) as probe:` in one of its cells")
    try:
        text.decode(tokenize.detect_encoding(io.BytesIO(text).readline)[0])
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        unknown = "unknown encoding" in str(error)
        reason = str(error) if unknown else "it is not UTF-8 text, and declares no other encoding"
        raise ScriptError(f"{path} is not a Python script: {reason}") from error
    code = compile(text, full, "exec", dont_inherit=True)
    return Program(code, path, path0, _attributes(full, SourceFileLoader("__main__", full)))


def _compiled(path: str) -> CodeType:
    try:
        with open(path, "rb") as stream:
            head, body = stream.read(16), stream.read()
        if head[:4] != importlib.util.MAGIC_NUMBER:
            raise ScriptError(f"{path} was compiled by another version of Python")
        code: CodeType = marshal.loads(body)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise ScriptError(f"cannot read {path}: {error}") from error
    return code


def _container(path: str, importer: Any) -> Program:
    """A directory or zip file that holds a `__main__.py`."""
    full = absolute(path)
    importer = pkgutil.get_importer(full) or importer
    spec = importer.find_spec("__main__")
    if spec is None:
        raise ScriptError(f"no __main__.py in {path}")
    return Program(spec.loader.get_code("__main__"), path, full, _of_spec(spec))


def _module(name: str) -> Program:
    """Imports the packages above the module, which runs their code."""
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = name, _found(f"{name}.__main__")
        if spec is None:
            raise ScriptError(f"{package} is a package without a __main__.py and cannot be run")
    if spec is None:
        raise ScriptError(f"no module named {name}")
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise ScriptError(f"module {name} has no Python code to run")
    return Program(code, spec.origin or name, os.getcwd(), _of_spec(spec))


def _found(name: str) -> ModuleSpec | None:
    if name.startswith("."):
        raise ScriptError(f"a relative module name cannot be run: {name}")
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            return None
        raise
    except ValueError:  # a module that lies in sys.modules without a spec
        return None


def _attributes(file: str, loader: object) -> dict[str, Any]:
    return {"__package__": None, "__loader__": loader, "__spec__": None, "__file__": file, "__cached__": None}


def _of_spec(spec: ModuleSpec) -> dict[str, Any]:
    return {
        "__package__": spec.parent,
        "__loader__": spec.loader,
        "__spec__": spec,
        "__file__": spec.origin,
        "__cached__": spec.cached,
    }


def path_is_safe() -> bool:
    """Whether Python was told (-P, -I) to put nothing before the module search path."""
    return bool(sys.flags.safe_path or sys.flags.isolated)
