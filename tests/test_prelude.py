"""Which names a block of a page leaves to the prelude."""

from __future__ import annotations

import pytest

from tests.prelude import PRELUDE, free_names, prelude


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = y", {"y"}),
        ("model = model.half()", {"model"}),
        ("model = nn.Linear(2, 2)\nmodel(x)", {"nn", "x"}),
        ("for x, y in loader:\n    model(x)", {"loader", "model"}),
        ("def step(x):\n    loss = model(x)\n    return loss", {"model"}),
        ("def step():\n    return helper()\ndef helper(): pass", set()),
        ("class A:\n    size = 1\n    def f(self, x=y):\n        return torch.ones(x)", {"y", "torch"}),
        ("losses = [f(x) for x in loader]", {"f", "loader"}),
        ("with autocast('cuda') as context:\n    pass", {"autocast"}),
        ("import torch.nn as nn\nimport torch.cuda", set()),
        ("total += loss", {"total", "loss"}),
        ("f = lambda x: x + scaler", {"scaler"}),
        ("try:\n    pass\nexcept ValueError as error:\n    raise error", {"ValueError"}),
    ],
)
def test_free_names(code: str, names: set[str]) -> None:
    assert free_names(code) == names


def test_the_prelude_brings_what_it_needs_itself() -> None:
    assert prelude("scaler.scale(loss).backward()").splitlines() == [
        "import torch",
        "from torch import nn",
        "import torch.nn.functional as F",
        PRELUDE["model"],
        PRELUDE["scaler"],
        PRELUDE["x"],
        PRELUDE["y"],
        *PRELUDE["loss"].splitlines(),
    ]
    assert prelude("print(1)") == ""


def test_every_prelude_compiles_and_is_complete() -> None:
    import builtins

    for name in PRELUDE:
        code = prelude(name)
        assert name in code
        assert free_names(code) <= set(dir(builtins))
