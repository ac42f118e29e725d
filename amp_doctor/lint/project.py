"""First-party modules of the linted tree: `from utils.train import step` -> the file, lowered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.objects import Api, Symbol, Value
from amp_doctor.lint.trace import ClassDef, Function, Seq

if TYPE_CHECKING:
    from pathlib import Path

    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.machine.slicing import Slicer
    from amp_doctor.lint.source import Source
    from amp_doctor.lint.state import State
    from amp_doctor.lint.syntax.names import Reference

STRIDE = 10_000_000
"""Node numbers of module n start at n * STRIDE, so a number tells its file."""


@dataclass(slots=True, eq=False)
class Module:
    """One lowered file. `frame` is the number of its global frame; `places` belongs to `lint.syntax`."""

    path: str
    file: Path | None
    code: str
    number: int
    body: Seq
    functions: list[Function]
    classes: list[ClassDef]
    references: list[Reference]
    uses: dict[str, set[str]]
    words: frozenset[str]
    places: Any
    slicer: Slicer
    table: dict[str, Value] | None = None
    visiting: bool = False

    @property
    def frame(self) -> int:
        """The number of its global frame."""
        return -1 - self.number


@dataclass(slots=True, eq=False)
class Project:
    """The linted tree as one program: its roots, and every module lowered so far."""

    roots: tuple[Path, ...] = ()
    modules: dict[str, Module | None] = field(default_factory=dict)
    count: int = 0
    used: set[str] = field(default_factory=set)
    whole: bool = False
    reread: set[str] = field(default_factory=set)
    tops: dict[tuple[Path, str], bool] = field(default_factory=dict)
    searched: dict[Path, list[Path]] = field(default_factory=dict)

    def number(self) -> int:
        """A number for the next module."""
        self.count += 1
        return self.count

    def bind_imports(self, m: Interpreter, names: tuple[tuple[str, str, int], ...], state: State) -> None:
        """Bind the names of one import statement in the current frame."""
        importer = m.owners.get(m.root(m.here), m.module)
        for local, full, level in names:
            state.env[(m.here, local)] = self.imported(m, importer, full, level)

    def imported(self, m: Interpreter, importer: Module, full: str, level: int) -> Value:
        """A library name, or a symbol that `settle` can turn into first-party code when somebody needs it."""
        top = full.split(".", maxsplit=1)[0]
        if level == 0 and (top in _LIBRARIES or not self.first_party(importer, top)):
            return Api(full)
        m.owners[importer.number] = importer
        return Symbol(f"import:{importer.number}:{level}:{full}", full.rpartition(".")[2])

    def first_party(self, importer: Module, top: str) -> bool:
        """Is there a module or package of this name beside the importer or in the linted tree?"""
        if importer.file is None:
            return False
        for folder in self.folders(importer):
            key = (folder, top)
            if key not in self.tops:
                self.tops[key] = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
            if self.tops[key]:
                return True
        return False

    def folders(self, importer: Module) -> list[Path]:
        """Where absolute imports of a file are looked for, inside the linted tree."""
        assert importer.file is not None
        parent = importer.file.parent
        found = self.searched.get(parent)
        if found is None:
            found = self.searched[parent] = [
                folder
                for folder in dict.fromkeys((parent, *self.roots, *list(parent.parents)[:4]))
                if self.inside(folder)
            ]
        return found

    def settle(self, m: Interpreter, symbol: Symbol, depth: int = 0, whole: bool = False) -> Value:
        """The first-party function or class behind an imported name; the symbol itself when it cannot be read.

        `whole`: the file matters even if it has no word of training, because half tensors go into it.
        """
        self.whole = whole
        if not symbol.key.startswith("import:"):
            return symbol
        _, number, level, full = symbol.key.split(":", 3)
        importer = m.owners.get(int(number))
        if importer is None:
            return symbol
        found = self.read(m, importer, full, int(level))
        if isinstance(found, Symbol) and found.key != symbol.key and found.key.startswith("import:") and depth < 3:
            return self.settle(m, found, depth + 1, whole)  # re-exported
        return found if not (isinstance(found, Symbol | Api)) else symbol

    def read(self, m: Interpreter, importer: Module, full: str, level: int) -> Value:
        """What an import names, from lowering the file that defines it."""
        head, _, last = full.rpartition(".")
        module = self.resolve(importer, full, level)
        if module is not None and not head:
            return Symbol(f"module:{module.path}", last)
        owner = self.resolve(importer, head, level) if head or level else None
        if owner is not None:
            table = self.table(m, owner)
            if last in table:
                return table[last]
            return Symbol(f"{owner.path}:{last}", last)
        return Api(full) if level == 0 else Symbol(f"unread:{importer.number}:{level}:{full}", last)

    def resolve(self, importer: Module, dotted: str, level: int) -> Module | None:
        """The lowered first-party module of a dotted name, or None."""
        if importer.file is None:
            return None
        parts = [part for part in dotted.split(".") if part]
        folders: list[Path] = []
        if level:
            folder = importer.file.parent
            for _ in range(level - 1):
                folder = folder.parent
            folders = [folder]
        else:
            folders = self.folders(importer)
        for folder in folders:
            if not self.inside(folder):
                continue
            base = folder.joinpath(*parts)
            for candidate in (base.with_suffix(".py") if parts else base / "__init__.py", base / "__init__.py"):
                if candidate == importer.file:
                    continue
                module = self.load(candidate)
                if module is not None:
                    return module
        return None

    def inside(self, folder: Path) -> bool:
        """True for folders of the linted tree."""
        return any(folder == root or root in folder.parents for root in self.roots)

    def load(self, file: Path) -> Module | None:
        """Lower a first-party file if it has to do with training; None when it has not or cannot be read."""
        key = str(file)
        if key not in self.modules or (self.whole and self.modules[key] is None and key not in self.reread):
            self.modules[key] = None
            if self.whole:
                self.reread.add(key)
            self.modules[key] = self._read(file, self.whole)
        module = self.modules[key]
        if module is not None:
            self.used.add(module.path)
        return module

    def known(self, source: Source) -> Module | None:
        """The module of a file that an earlier file's imports already had lowered, if it is still the same text."""
        module = self.modules.get(str(source.file)) if source.file is not None else None
        return module if module is not None and module.code == source.code and module.path == source.path else None

    def _read(self, file: Path, whole: bool) -> Module | None:
        from amp_doctor.errors import ReadError
        from amp_doctor.lint.gate import training
        from amp_doctor.lint.source import read_source
        from amp_doctor.lint.syntax import SyntaxFault
        from amp_doctor.lint.syntax.parse import parse

        try:
            if not file.is_file() or file.stat().st_size > 400_000:
                return None
            source = read_source(file)
            if not whole and not training(source.raw):
                return None
            return parse(source, self.number(), whole)
        except (OSError, ReadError, SyntaxFault, RecursionError):
            return None

    def table(self, m: Interpreter, module: Module) -> dict[str, Value]:
        """The global names of another module, from running its top level quietly once."""
        if module.table is None:
            if module.visiting:
                return {}
            module.visiting = True
            try:
                module.table = self._run(m, module)
            finally:
                module.visiting = False
        m.globals[module.frame] = module.table
        m.owners[module.number] = module
        m.owners[module.frame] = module
        return module.table

    def _run(self, m: Interpreter, module: Module) -> dict[str, Value]:
        from amp_doctor.lint.fold import fold
        from amp_doctor.lint.machine.interpreter import Call
        from amp_doctor.lint.state import State

        m.owners[module.number] = module
        m.owners[module.frame] = module
        function = Function(module.number * STRIDE, "<module>", (), definitions(module.body), module=module.number)
        saved, m.stack = m.stack, [Call(function, module.frame)]
        m.quiet += 1
        try:
            flow = fold(function.body, [State()], m)
        finally:
            m.quiet -= 1
            m.stack = saved
        ends = flow.ends or flow.exits.get("raise", [])
        if not ends:
            return {}
        return {
            name: value
            for (frame, name), value in ends[0].env.items()
            if frame == module.frame and not name.startswith("%")
        }


def definitions(body: Seq) -> Seq:
    """The top-level statements that define names: imports, functions, classes, plain assignments."""
    from amp_doctor.lint.trace import Bind, CallLeaf, Define, DefineClass, Import, Stmt

    kept = []
    for item in body.items:
        inner = item.body.items if isinstance(item, Stmt) else (item,)
        plain = all(isinstance(part, Define | DefineClass | Import | Bind | CallLeaf | Seq) for part in inner)
        if plain and not all(isinstance(part, CallLeaf) for part in inner):
            kept.append(item)
    return Seq(tuple(kept))


_LIBRARIES = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "numpy",
        "os",
        "sys",
        "math",
        "random",
        "time",
        "json",
        "typing",
        "functools",
        "itertools",
        "contextlib",
        "collections",
        "dataclasses",
        "logging",
        "argparse",
        "copy",
        "re",
        "pathlib",
        "warnings",
        "tqdm",
        "apex",
        "abc",
        "enum",
        "inspect",
        "operator",
        "threading",
    ]
)
