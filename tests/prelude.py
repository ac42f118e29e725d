"""Block of a page -> the prelude that defines what the block uses without defining it."""

from __future__ import annotations

import ast
import symtable

PRELUDE: dict[str, str] = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "os": "import os",
    "copy": "import copy",
    "math": "import math",
    "threading": "import threading",
    "argparse": "import argparse",
    "contextlib": "import contextlib",
    "nullcontext": "from contextlib import nullcontext",
    "clip_grad_norm_": "from torch.nn.utils import clip_grad_norm_",
    "GradScaler": "from torch.amp import GradScaler",
    "autocast": "from torch.amp import autocast",
    "model": "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "scaler": 'scaler = torch.amp.GradScaler("cuda")',
    "x": 'x = torch.randn(4, 8, device="cuda")',
    "y": 'y = torch.randn(4, 2, device="cuda")',
    "loader": "loader = [(x, y)]",
    "loss": 'with torch.autocast("cuda", dtype=torch.float16):\n    loss = F.mse_loss(model(x), y)',
    "epochs": "epochs = 3",
    "use_amp": 'use_amp = os.environ.get("USE_AMP") == "1"',
    "args": "args = argparse.ArgumentParser().parse_args()",
}


def prelude(code: str) -> str:
    """The lines to put before `code`, in the order of the table, each ending in a newline; may be empty."""
    wanted = free_names(code) & PRELUDE.keys()
    grown = True
    while grown:
        needed = {name for item in wanted for name in free_names(PRELUDE[item])} & PRELUDE.keys()
        grown = not needed <= wanted
        wanted |= needed
    return "".join(f"{text}\n" for name, text in PRELUDE.items() if name in wanted)


def free_names(code: str) -> set[str]:
    """Names the module reads before it binds them, and names its functions read that it never binds."""
    reader = _ModuleReader()
    reader.visit(ast.parse(code))
    table = symtable.symtable(code, "<block>", "exec")
    return reader.unbound | (_globals_of_functions(table) - reader.bound)


def _globals_of_functions(table: symtable.SymbolTable) -> set[str]:
    names: set[str] = set()
    for child in table.get_children():
        names |= {symbol.get_name() for symbol in child.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        names |= _globals_of_functions(child)
    return names


class _ModuleReader(ast.NodeVisitor):
    """Walks the module's own statements in the order they run; bodies of functions are left to symtable."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.unbound: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)
        elif node.id not in self.bound:
            self.unbound.add(node.id)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound.add((node.asname or node.name).partition(".")[0])

    def visit_Assign(self, node: ast.Assign) -> None:
        self._in_order(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._in_order(node.annotation, node.value, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id not in self.bound:
            self.unbound.add(node.target.id)
        self._in_order(node.value, node.target)

    def visit_For(self, node: ast.For) -> None:
        self._in_order(node.iter, node.target, *node.body, *node.orelse)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside = (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, node.returns)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self._in_order(*outside, *(argument.annotation for argument in arguments))
        self.bound.add(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._in_order(*node.args.defaults, *node.args.kw_defaults)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # The names of a class body are its own; what it and its methods read from outside, symtable knows.
        self._in_order(*node.decorator_list, *node.bases, *node.keywords)
        self.bound.add(node.name)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        own = {name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)}
        read = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - own
        self.unbound |= read - self.bound

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    def _in_order(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)
