"""The models under fixtures/models: loaded, run, and what the comments at their top expect of the probe.

`# expect: AMP602 embed` wants that finding on that layer, `-` stands for none; `# may: AMP606 blocks.*` lets findings pass
that are true as well; `# expect: nothing` wants no finding at all, `# missed: ...` says what should be found and is not.
Layers are globs.
"""

from __future__ import annotations

import contextlib
import io
import re
from fnmatch import fnmatchcase
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from amp_doctor.finding import Finding

HOME = ROOT / "fixtures" / "models"
FILES = sorted(HOME.rglob("*.py"))
_COMMENT = re.compile(r"^# (expect|may): (?:(AMP\d{3}) (\S+)|nothing)$", re.MULTILINE)


def title(file: Path) -> str:
    """The name of a model in a test's id."""
    return file.relative_to(HOME).with_suffix("").as_posix()


def run(file: Path, device: str = "cpu") -> None:
    """Train it as a script would, silently."""
    module = load(file, device)
    with contextlib.redirect_stdout(io.StringIO()):
        module.main()


def load(file: Path, device: str = "cpu") -> Any:
    """The file as a module of its own, with another device in place of the CPU."""
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(file.read_text().replace('"cpu"', f'"{device}"'), str(file), "exec"), module.__dict__)
    return module


def mismatches(file: Path, findings: Sequence[Finding]) -> list[str]:
    """What the comments of a file expect and the findings do not give, and the other way round."""
    comments = [match.groups() for match in _COMMENT.finditer(file.read_text())]
    assert any(kind == "expect" for kind, _, _ in comments), f"{file.name} says nothing about what to expect"
    wanted = [(code, layer) for kind, code, layer in comments if kind == "expect" and code]
    allowed = [(code, layer) for _, code, layer in comments if code]
    found = [(finding.code, finding.layer or "-", finding.message) for finding in findings]
    wrong = [
        f"no {code} on {layer}"
        for code, layer in wanted
        if not any(code == other and fnmatchcase(place, layer) for other, place, _ in found)
    ]
    wrong += [
        f"unexpected {code} on {place}: {message}"
        for code, place, message in found
        if not any(code == other and fnmatchcase(place, layer) for other, layer in allowed)
    ]
    for code in {code for code, _ in wanted}:
        place = next((place for other, place, _ in found if other == code), None)
        if place and not any(code == other and fnmatchcase(place, layer) for other, layer in wanted):
            wrong.append(f"{place} is said to be worst of {code}")
    return wrong


@contextlib.contextmanager
def kept_models() -> Iterator[list[nn.Module]]:
    """The modules without a parent that are built inside and own parameters, in the order of their construction."""
    built: list[nn.Module] = []
    original = nn.Module.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        built.append(self)

    nn.Module.__init__ = init  # type: ignore[method-assign]
    roots: list[nn.Module] = []
    try:
        yield roots
    finally:
        nn.Module.__init__ = original  # type: ignore[method-assign]
        children = {id(child) for module in built for child in module.children()}
        roots += [
            module for module in built if id(module) not in children and next(module.parameters(), None) is not None
        ]


def bits(tensor: torch.Tensor) -> bytes:
    """What lies in memory: NaN equals itself, and -0 differs from 0."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
