"""A script -> where it sets up mixed precision for CUDA, read from its source, its arguments and its environment.

`amp-doctor probe` asks this: what the answer names is emulated on a machine without a GPU. In doubt (a device that only
the run will know) a script that speaks of CUDA is taken to mean it; one that was told to use the CPU is not.
"""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING, Any

from amp_doctor.cli.constants import UNKNOWN, Constants, given
from amp_doctor.cli.imports import first_party, top_of
from amp_doctor.cli.parameters import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
SCALERS = ("torch.GradScaler", "torch.amp.GradScaler", "torch.amp.grad_scaler.GradScaler")
# Both are of CUDA alone.
FORMER = "torch.cuda.amp."
HALF = ("torch.float16", "torch.half", "torch.bfloat16")
# Of FSDP.
SHARDED = ("MixedPrecision", "MixedPrecisionPolicy")
# What stands for half precision in the settings of trainers.
WORDS = frozenset({"fp16", "bf16", "16", 16, "16-mixed", "bf16-mixed", "16-true", "bf16-true"})
FLAGS = ("fp16", "bf16", "amp")
# Keyword -> the last words of the names of what takes it.
KEYWORDS = {
    "amp": ("Trainer",),
    "fp16": ("Arguments", "Config", "Args"),
    "bf16": ("Arguments", "Config", "Args"),
    "mixed_precision": ("Accelerator",),
    "precision": ("Trainer", "Fabric"),
}
# What keeps a run on the CPU, in a call, among the arguments, and in the environment.
ON_CPU: Mapping[str, tuple[object, ...]] = {
    "use_cpu": (True,),
    "no_cuda": (True,),
    "cpu": (True,),
    "accelerator": ("cpu",),
    "no_accel": (True,),
}
# How options that name a device end.
DEVICES = ("device", "device_type", "accelerator", "platform")
_CUDA = re.compile(rb"""["']cuda\b|\.cuda\(|torch\.cuda|accelerator""")
_ANY = re.compile(rb"autocast|GradScaler|\.half\(|float16|fp16|bf16|precision|cuda\.amp|amp=|Accelerator")
_SETTING = re.compile(
    r"""(fp16|bf16)["']?\s*[:=]\s*true|precision["']?\s*[:=]\s*["']?(fp16|bf16|16)\b""", re.IGNORECASE
)
_SETTINGS = (".json", ".yaml", ".yml", ".toml")
_LARGEST = 1_000_000
# A script that uses our own classes is no sign of anything.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def cuda_amp(script: str | None, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Where and by what, in words such as `train.py:31 enters torch.autocast`; empty where it does not."""
    if _told_cpu(arguments, environment):
        return ""
    files = dict(_read(script, environment)) if script is not None else {}
    if not any(_ANY.search(text) for text in files.values()):
        return _told_half(arguments, environment, not files)
    trees = {path: tree for path, text in files.items() if (tree := _parsed(text)) is not None}
    known = Constants(trees.values(), arguments)
    if any(name.endswith("device") and values == {"cpu"} for name, values in known.options().items()):
        return ""
    mentioned = any(_CUDA.search(text) for text in files.values())
    finders = {
        path: _Finder(tree, known, mentioned, path == script or b"backward(" in files[path])
        for path, tree in trees.items()
    }
    for path, finder in finders.items():
        if finder.met is not None:
            line, words = finder.met
            return f"{os.path.basename(path)}:{line} {words}"
    if any(finder.declined for finder in finders.values()):
        return ""
    return _told_half(arguments, environment, any(finder.settings for finder in finders.values()))


# --- what is read -----------------------------------------------------------------------------------------------------


def _read(script: str, environment: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    # The working directory is that of a project which is installed from there, most often.
    roots = [top_of(script), *environment.get("PYTHONPATH", "").split(os.pathsep), os.getcwd()]
    for path in (script, *first_party(script, [root for root in roots if root])):
        if path.startswith(_OURS):
            continue
        try:
            with open(path, "rb") as file:
                yield path, file.read()
        except OSError:
            continue


def _parsed(text: bytes) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _told_cpu(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    if environment.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return True
    told = given(arguments)
    asked = [value for name, value in told.items() if name.endswith(DEVICES)]
    return "cpu" in asked or any(told.get(name) in values for name, values in ON_CPU.items())


def _told_half(arguments: Sequence[str], environment: Mapping[str, str], settings: bool) -> str:
    """What only the words around the script say: a trainer's own options, a file of settings, a launcher."""
    told = given(arguments)
    for name, value in told.items():
        flag = name.removeprefix("use_") in FLAGS and value not in (False, "0", "no")
        if flag or (name.endswith("precision") and value in WORDS):
            return f"it is given --{name}"
    for word in arguments:
        if word.endswith(_SETTINGS) and _sets_half(word):
            return f"{os.path.basename(word)} asks for it"
    launched = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    return f"ACCELERATE_MIXED_PRECISION is {launched}" if settings and launched in FLAGS else ""


def _sets_half(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _SETTING.search(file.read(_LARGEST)) is not None
    except OSError:
        return False


# --- one file ---------------------------------------------------------------------------------------------------------


class _Finder(ast.NodeVisitor):
    """`met` is the first line that counts, and why; `declined` tells that AMP is there, and off or not for CUDA.

    `mentioned` tells that the project speaks of CUDA; casts count where `trains` is set: others may never be made.
    """

    def __init__(self, tree: ast.Module, known: Constants, mentioned: bool, trains: bool) -> None:
        self.met: tuple[int, str] | None = None
        self.declined = self.settings = False
        self._known, self._mentioned, self._trains = known, mentioned, trains
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._names |= {one.asname: one.name for one in node.names if one.asname}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and dotted(node.value):
                self._names.setdefault(node.targets[0].id, dotted(node.value))
        self.visit(tree)

    def visit_If(self, node: ast.If) -> None:
        """Only what can be reached counts."""
        self._branch(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Likewise in `autocast() if amp else nullcontext()`."""
        self._branch(node.test, [node.body], [node.orelse])

    def _branch(self, test: ast.expr, *parts: Sequence[ast.AST]) -> None:
        held = self._known.truth(test)
        for part, when in zip(parts, (True, False), strict=True):
            if held in (when, None):
                for one in part:
                    self.visit(one)
            else:
                self.declined = self.declined or any(map(self._has_amp, part))

    def _has_amp(self, tree: ast.AST) -> bool:
        names = (self._full(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
        return any(name in AUTOCAST or name in SCALERS or name.startswith(FORMER) for name in names)

    def visit_Call(self, node: ast.Call) -> None:
        """Regions, scalers, casts, and the settings of trainers."""
        name, arguments = self._full(node.func), node.args
        if name.rpartition(".")[2] == "partial" and arguments:
            name, arguments = self._full(arguments[0]), arguments[1:]
        told = {one.arg: one.value for one in node.keywords if one.arg}
        words = self._region(name, arguments, told) or self._cast(node, told) or self._trainer(name, told)
        if name.endswith(SHARDED) and self._full(told.get("param_dtype", node.func)) in HALF:
            words = words or f"makes a {name}"
        if words and self.met is None:
            self.met = node.lineno, words
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A scaler of the script's own."""
        for base in node.bases:
            name = self._full(base)
            if self.met is None and self._mentioned and (name in SCALERS or name.startswith(FORMER)):
                self.met = node.lineno, f"derives from {name}"
        self.generic_visit(node)

    def _full(self, node: ast.expr) -> str:
        name = dotted(node)
        first, dot, rest = name.partition(".")
        return self._names.get(first, first) + dot + rest

    def _region(self, name: str, arguments: Sequence[ast.expr], told: dict[str, ast.expr]) -> str:
        former = name.startswith(FORMER) and name.endswith((".autocast", ".GradScaler"))
        if not (former or name in AUTOCAST or name in SCALERS):
            return ""
        if self._is(told.get("enabled"), False):
            self.declined = True
            return ""
        place = told.get("device_type") or told.get("device") or (arguments[0] if arguments else None)
        if not former and place is not None and not self._may_be_cuda(place):
            self.declined = True
            return ""
        return f"{'makes a' if name.endswith('GradScaler') else 'enters'} {name}"

    def _cast(self, call: ast.Call, told: dict[str, ast.expr]) -> str:
        if not (self._mentioned and self._trains) or not isinstance(call.func, ast.Attribute):
            return ""
        name = call.func.attr
        if name in ("half", "bfloat16") and not (call.args or told):
            return f"calls .{name}()"
        loads = name == "from_pretrained"
        if name == "to" or loads:
            dtypes = [*([] if loads else call.args), *(told[one] for one in ("dtype", "torch_dtype") if one in told)]
            met = next((one for one in map(self._full, dtypes) if one in HALF), "")
            return f"casts to {met}" if met else ""
        return ""

    def _trainer(self, name: str, told: dict[str, ast.expr]) -> str:
        last = name.rpartition(".")[2]
        self.settings = self.settings or last.endswith("Accelerator")
        if any(self._is(told.get(one), *values) for one, values in ON_CPU.items()):
            self.declined = self.declined or any(last.endswith(ends) for ends in KEYWORDS.values())
            return ""
        for keyword, ends in KEYWORDS.items():
            if keyword not in told or not last.endswith(ends):
                continue
            values = self._known.of(told[keyword])
            on = bool(values & WORDS)
            if keyword in FLAGS:
                on = self._known.truth(told[keyword]) is not False and (keyword != "amp" or UNKNOWN not in values)
            if on:
                return f"calls {last}({keyword}={ast.unparse(told[keyword])})"
        return ""

    def _may_be_cuda(self, node: ast.expr) -> bool:
        values = self._known.of(node)
        return any(isinstance(one, str) and one.startswith("cuda") for one in values) or (
            UNKNOWN in values and self._mentioned
        )

    def _is(self, node: ast.expr | None, *wanted: Any) -> bool:
        """Whether it is one of `wanted`, and nothing else."""
        if node is None:
            return False
        values = self._known.of(node)
        return all(any(one is two or (one == two and not isinstance(two, bool)) for two in wanted) for one in values)
