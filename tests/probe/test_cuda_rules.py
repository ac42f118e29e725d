"""CUDA's autocast policy: read from the header, confirmed by the dispatcher and by torch's own test lists."""

from __future__ import annotations

import json
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from amp_doctor.probe.autocast_header import policies_of
from amp_doctor.probe.cuda_rules import Banned, computed_dtype, eligible, output_dtype, policy, policy_of
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = sorted((ROOT / "fixtures" / "autocast").glob("*.json"))
INSTALLED = torch.__version__.partition("+")[0]
HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(scope="session")
def lists() -> Iterator[Any]:
    """torch/testing/_internal/autocast_test_lists.py, without the test framework that it imports."""
    name = "torch.testing._internal.common_utils"
    before = sys.modules.get(name)
    stand_in = types.ModuleType(name)
    stand_in.TEST_WITH_ROCM, stand_in.TestCase = False, object  # type: ignore[attr-defined]
    sys.modules[name] = stand_in
    try:
        from torch.testing._internal.autocast_test_lists import AutocastTestLists

        yield AutocastTestLists("cpu")
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before


def dtypes(arguments: Any) -> list[torch.dtype]:
    """The dtypes of the tensors in arguments, in order, lists included."""
    found: list[torch.dtype] = []
    for one in arguments:
        if isinstance(one, torch.Tensor):
            found.append(one.dtype)
        elif isinstance(one, (tuple, list)):
            found += dtypes(one)
    return found


def test_the_policy_names_exactly_what_the_dispatcher_has_for_autocast_on_cuda() -> None:
    registered = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    assert set(policy()) == registered


def test_every_operator_of_the_policy_exists() -> None:
    schemas = {f"{s.name}.{s.overload_name}".rstrip(".") for s in torch._C._jit_get_all_schemas()}
    assert {f"aten::{name}" for name in policy()} <= schemas


def test_the_installed_torch_is_among_the_recorded_ones_or_differs_in_operators_only() -> None:
    recorded = {path.stem: json.loads(path.read_text()) for path in FIXTURES}
    latest = recorded.get(INSTALLED, recorded[FIXTURES[-1].stem])
    common = set(latest) & set(policy())
    assert {name: policy()[name] for name in common} == {name: latest[name] for name in common}
    if INSTALLED in recorded:
        assert dict(policy()) == recorded[INSTALLED]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("matmul", "lower_precision"),
        ("linear", "lower_precision"),
        ("scaled_dot_product_attention", "lower_precision"),
        ("softmax.int", "fp32_set_opt_dtype"),
        ("layer_norm", "fp32"),
        ("norm.Scalar", "fp32_append_dtype"),
        ("addcmul", "promote"),
        ("binary_cross_entropy", "banned"),
        ("cudnn_convolution", "lower_precision"),
    ],
)
def test_other_releases(path: Any, op: str, expected: str) -> None:
    assert policy_of(op, json.loads(path.read_text())) == expected


def test_rms_norm_came_later() -> None:
    old = json.loads((ROOT / "fixtures" / "autocast" / "2.4.1.json").read_text())
    new = json.loads((ROOT / "fixtures" / "autocast" / "2.13.0.json").read_text())
    assert policy_of("rms_norm", old) is None
    assert computed_dtype("rms_norm", [HALF], HALF, rules=old) is HALF
    assert computed_dtype("rms_norm", [HALF], HALF, rules=new) is FP32
    assert set(new) - set(old) == {"rms_norm"}
    assert all("Dimname" in name or "dimname" in name or "names_" in name for name in set(old) - set(new))


def test_a_header_without_the_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="AT_FORALL_LOWER_PRECISION_FP is not in this"):
        policies_of("#define SOMETHING(_) \\\n  _(else)\n")


@pytest.mark.parametrize("low", [HALF, BF16])
def test_every_operator_of_torchs_own_lists(lists: Any, low: torch.dtype) -> None:
    """All 119 calls: in half, in float32, promoted by autocast, promoted by torch itself."""
    wrong, checked = [], 0
    groups: list[tuple[Any, torch.dtype | None]] = [
        *((getattr(lists, name), low) for name in ("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16")),
        *((getattr(lists, name), FP32) for name in ("torch_fp32", "nn_fp32", "methods_fp32")),
        (lists.torch_need_autocast_promote, None),
    ]
    for entries, expected in groups:
        for name, *rest in entries:
            arguments = rest[1] if name == "einsum" else rest[0]
            found = output_dtype(name.removeprefix("__").removesuffix("__"), dtypes(arguments), low)
            # The promoted ones of the lists mix float16 with float32.
            if found is not (expected or FP32):
                wrong.append((name, found))
            checked += 1
    for name, arguments, expected in (*lists.torch_expect_builtin_promote, *lists.methods_expect_builtin_promote):
        if name != "equal":  # it returns no tensor
            if output_dtype(name.strip("_"), dtypes(arguments), low) is not expected:
                wrong.append((name, expected))
            checked += 1
    assert wrong == []
    assert checked >= 119


def test_what_is_banned(lists: Any) -> None:
    assert [name for name, *_ in lists.banned] == ["binary_cross_entropy"]
    with pytest.raises(Banned, match="binary_cross_entropy"):
        output_dtype("binary_cross_entropy", [FP32, FP32], HALF)
    assert output_dtype("binary_cross_entropy", [FP32, FP32], None) is FP32


@pytest.mark.parametrize(
    ("op", "inputs", "asked", "expected"),
    [
        ("aten::mm", [FP32, FP32], None, HALF),
        ("mm", [FP64, FP64], None, FP64),
        ("mm.default", [BF16, BF16], None, HALF),
        ("lstm.input", [FP32], None, HALF),
        ("aten::sum.dim_IntList", [HALF], None, FP32),
        ("sum", [HALF], HALF, HALF),
        ("sum", [torch.int64], None, torch.int64),
        ("softmax", [FP64], None, FP64),
        ("norm", [HALF], None, FP32),
        ("addcmul", [HALF, HALF, HALF], None, HALF),
        ("addcmul", [BF16, BF16, BF16], None, FP32),
        ("mean", [HALF], None, HALF),
        ("gelu", [BF16], None, BF16),
        ("add", [HALF, FP32], None, FP32),
        ("le", [HALF, FP32], None, torch.bool),
        ("mm.out", [FP32, FP32, FP32], None, FP32),
        ("addmm_", [FP32, FP32, FP32], None, FP32),
    ],
)
def test_single_operators(op: str, inputs: list[torch.dtype], asked: torch.dtype | None, expected: torch.dtype) -> None:
    assert output_dtype(op, inputs, HALF, asked) is expected


def test_nothing_is_cast_outside_autocast() -> None:
    assert output_dtype("mm", [FP32, FP32], None) is FP32
    assert output_dtype("softmax", [HALF], None) is HALF


def test_what_may_be_cast() -> None:
    assert [eligible(one) for one in (HALF, BF16, FP32, FP64, torch.int64, torch.complex64)] == [True] * 3 + [False] * 3
