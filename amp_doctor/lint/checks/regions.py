"""AMP3: losses and other operations that have to be inside a region, outside of it, or in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.finding import Confidence
from amp_doctor.lint import apis
from amp_doctor.lint.checks.autocast import explicit
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import Args, Forward, OpCall
from amp_doctor.lint.machine import arguments, modules
from amp_doctor.lint.machine.tensors import LOW, tensors_in
from amp_doctor.lint.objects import FALSE, FP32, Api, Literal, Object, Symbol, Tensor, Value, dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOSS_CLASSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
    "SoftMarginLoss": "soft_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
}
_OF_SCORES = frozenset(
    [
        "cross_entropy",
        "nll_loss",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "multilabel_soft_margin_loss",
        "multi_margin_loss",
    ]
)
"""Losses whose exponentials run in the dtype of the scores, whatever the target is."""
_POINTWISE = frozenset(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"])
"""Losses in which a float32 target promotes the whole."""


def loss_call(event: OpCall | Forward) -> tuple[str, Args] | None:
    """The functional name of a loss of PyTorch that is called, and its arguments."""
    if isinstance(event, OpCall):
        short = apis.short(event.name)
        known = event.name.startswith("torch.nn.functional.") and short in apis.LOSSES
        return (short, event.args) if known else None
    if isinstance(event.module, Object) and event.module.api.startswith("torch.nn."):
        name = _LOSS_CLASSES.get(event.module.api.rpartition(".")[2])
        return (name, event.args) if name else None
    return None


def half_of_autocast(value: Value | None) -> bool:
    """A half-precision tensor that a region made."""
    return isinstance(value, Tensor) and value.dtype in LOW and bool(value.tags & {"fp16", "bf16"})


def in_half(name: str, args: Args) -> Tensor | None:
    """The half-precision score that makes this loss run in half precision, if it does outside autocast."""
    score, target = arguments.argument(args, 0, "input"), arguments.argument(args, 1, "target")
    if not isinstance(score, Tensor) or not half_of_autocast(score):
        return None
    if name in _OF_SCORES or (name in _POINTWISE and isinstance(target, Tensor) and target.dtype == score.dtype):
        return score
    return None


def _confidence(tensor: Tensor) -> Confidence:
    return Confidence.HIGH if tensor.sure else Confidence.MEDIUM


@check("AMP302", on=(OpCall, Forward))
def loss_outside_autocast(at: Moment[OpCall | Forward]) -> Iterator[Draft]:
    if at.state.regions:
        return
    found = loss_call(at.event)
    score = in_half(*found) if found is not None else _given_to_criterion(at) or _log_probability(at)
    if score is not None:
        yield at.finding(
            "loss of a half-precision output outside autocast: cast the output with .float()",
            trail=[(score.at, f"{score.dtype} from here")],
            confidence=_confidence(score),
        )


def _given_to_criterion(at: Moment[OpCall | Forward]) -> Tensor | None:
    """What autocast made and an unknown criterion is now given."""
    if not isinstance(at.event, Forward) or not isinstance(at.event.module, Symbol) or imported(at.event.module):
        return None
    if apis.LOSSISH.search(at.event.module.name) is None:
        return None
    return next((each for each in tensors_in([v for _, v in at.event.args]) if half_of_autocast(each)), None)


def _log_probability(at: Moment[OpCall | Forward]) -> Tensor | None:
    """The half-precision scores of a log_softmax that is trained through."""
    event = at.event
    if not isinstance(event, OpCall) or apis.short(event.name) != "log_softmax" or at.interpreter.no_grad(at.state):
        return None
    score = event.receiver if event.name.startswith("Tensor.") else event.arg(0, "input")
    told = any(key == "dtype" for key, _ in event.args)
    return score if isinstance(score, Tensor) and half_of_autocast(score) and score.sources and not told else None


def imported(module: Symbol) -> bool:
    """A function or class of another file: what it does with its arguments is not seen."""
    return module.key.startswith("import:") or ".py:" in module.key


@check("AMP305", on=(OpCall, Forward))
def bce_in_autocast(at: Moment[OpCall | Forward]) -> Iterator[Draft]:
    found, region = loss_call(at.event), explicit(at)
    if found is None or found[0] != "binary_cross_entropy" or region is None or region.device != "cuda":
        return
    name = "BCELoss" if isinstance(at.event, Forward) else "binary_cross_entropy"
    yield at.finding(
        f"{name} is refused under CUDA autocast: use the loss with logits, or leave the region",
        trail=[(region.at, "the region begins here")],
    )


@check("AMP306", on=(OpCall, Forward))
def sigmoid_before_bce(at: Moment[OpCall | Forward]) -> Iterator[Draft]:
    found, region = loss_call(at.event), at.region()
    if found is None or found[0] != "binary_cross_entropy" or (region is not None and region.device != "cpu"):
        return
    prob = arguments.argument(found[1], 0, "input")
    if isinstance(prob, Tensor) and "low-sigmoid" in prob.tags:
        yield at.finding(
            "a sigmoid under autocast before binary cross entropy: use the loss with logits",
            confidence=_confidence(prob),
        )


@check("AMP307", on=(OpCall, Forward))
def half_input_in_disabled_region(at: Moment[OpCall | Forward]) -> Iterator[Draft]:
    regions = at.state.regions
    if not regions or regions[-1].enabled != FALSE or any(region.presumed for region in regions):
        return
    found = loss_call(at.event)
    tensor = in_half(*found) if found is not None else _half_input(at) or _fragile_operand(at)
    if tensor is not None:
        yield at.finding(
            "a half-precision tensor enters the disabled region: cast it with .float()",
            trail=[(tensor.at, "made under autocast here"), (regions[-1].at, "autocast is off from here")],
            confidence=_confidence(tensor),
        )


def _half_input(at: Moment[OpCall | Forward]) -> Tensor | None:
    """What autocast made and a layer with float32 weights, or an unknown criterion, is now given."""
    if not isinstance(at.event, Forward):
        return None
    module, inputs = at.event.module, tensors_in([value for _, value in at.event.args])
    if isinstance(module, Symbol):
        made = [
            each
            for each in inputs
            if half_of_autocast(each) or (each.dtype is None and {"region", "output"} <= each.tags)
        ]
        if imported(module):
            return None  # unseen code: it may cast inside, as the losses of VITS do
        if made and apis.LOSSISH.search(module.name):
            return made[0]
        return next((each for each in made if half_of_autocast(each)), None)
    layer = isinstance(module, Object) and (apis.LOWER_MODULES.match(module.api) or module.api == "torch.nn.Sequential")
    if layer and modules.precision_of(module, at.state) in (None, FP32):
        return next((each for each in inputs if half_of_autocast(each)), None)
    return None


def _fragile_operand(at: Moment[OpCall | Forward]) -> Tensor | None:
    """What autocast made and an operation is now given that autocast would have run in float32."""
    event = at.event
    if not isinstance(event, OpCall) or apis.short(event.name) not in apis.FLOAT32_OPS - apis.LOSSES:
        return None
    first = event.receiver if event.name.startswith("Tensor.") else event.arg(0, "input")
    told = any(key == "dtype" for key, _ in event.args)
    return first if isinstance(first, Tensor) and half_of_autocast(first) and first.sure and not told else None


_NO_HALF = frozenset(
    [
        "inverse",
        "pinverse",
        "det",
        "logdet",
        "slogdet",
        "svd",
        "svd_lowrank",
        "pca_lowrank",
        "qr",
        "cholesky",
        "cholesky_solve",
        "cholesky_inverse",
        "lu",
        "lu_solve",
        "lstsq",
        "triangular_solve",
        "solve",
        "eig",
        "symeig",
        "matrix_exp",
        "matrix_rank",
        "quantile",
        "nanquantile",
        "linalg.inv",
        "linalg.inv_ex",
        "linalg.pinv",
        "linalg.det",
        "linalg.slogdet",
        "linalg.solve",
        "linalg.solve_ex",
        "linalg.solve_triangular",
        "linalg.lstsq",
        "linalg.svd",
        "linalg.svdvals",
        "linalg.eig",
        "linalg.eigvals",
        "linalg.eigh",
        "linalg.eigvalsh",
        "linalg.qr",
        "linalg.cholesky",
        "linalg.cholesky_ex",
        "linalg.lu",
        "linalg.lu_factor",
        "linalg.lu_solve",
        "linalg.ldl_factor",
        "linalg.matrix_exp",
        "linalg.matrix_rank",
        "linalg.cond",
        "linalg.householder_product",
        "linalg.tensorinv",
        "linalg.tensorsolve",
    ]
)
_FFT = frozenset(
    ["stft"] + [f"fft.{i}{real}fft{n}" for i in ("", "i") for real in ("", "r", "h") for n in ("", "2", "n")]
)
_WITH_MATMUL = frozenset(["svd_lowrank", "pca_lowrank"])
"""Written in Python: autocast runs the products in them in half precision, and their QR has no such kernel."""


@check("AMP308", on=OpCall)
def op_without_half_kernel(at: Moment[OpCall]) -> Iterator[Draft]:
    short, region = apis.short(at.event.name), at.region()
    # Autocast runs cdist in float32; outside of it there is no half-precision kernel.
    if short not in _NO_HALF and short not in _FFT and (short != "cdist" or region is not None):
        return
    if short in _WITH_MATMUL and region is not None and region.dtype in LOW and explicit(at) is not None:
        message = f"{short} multiplies in {region.dtype} under autocast, and has no such kernel for the rest"
        yield at.finding(f"{message}: leave the region for it", trail=[(region.at, "the region begins here")])
        return
    first = at.event.receiver if at.event.name.startswith("Tensor.") else at.event.arg(0, "input")
    if (
        not isinstance(first, Tensor)
        or first.dtype not in LOW
        or not first.sure
        or (region is not None and region.device == "cpu")
    ):
        return
    words, sure = f"{short} has no half-precision kernel", Confidence.HIGH
    if short in _FFT:
        words = f"{short} of a half-precision tensor: cuFFT takes only lengths that are powers of two"
        sure = Confidence.MEDIUM
    if any(each.presumed for each in at.state.regions):
        sure = Confidence.LOW
    trail = [(first.at, f"{first.dtype} from here")]
    yield at.finding(f"{words}; cast its input with .float()", trail=trail, confidence=sure)


@check("AMP309", on=OpCall)
def out_argument_in_autocast(at: Moment[OpCall]) -> Iterator[Draft]:
    short = apis.short(at.event.name).removeprefix("Symbol.")
    listed = apis.LOWER_PRECISION | apis.FLOAT32_OPS
    inputs = tensors_in([at.event.receiver or Literal(None), *[value for key, value in at.event.args if key != "out"]])
    out = next((value for key, value in at.event.args if key == "out"), None)
    base = short.removesuffix("_")
    in_place = short == f"{base}_" and at.event.name.startswith(("Tensor.", "Symbol."))
    if explicit(at) is None or base not in listed or not (in_place or isinstance(out, Tensor | Symbol)):
        return
    # An operation that autocast runs in float32 loses something only when it is given less.
    if base in apis.LOWER_PRECISION or any(each.dtype in LOW for each in inputs):
        yield at.finding(f"{f'{base}_' if in_place else 'out='} is not cast by autocast")


@check("AMP310", on=OpCall)
def dtype_argument_in_autocast(at: Moment[OpCall]) -> Iterator[Draft]:
    given = next((value for key, value in at.event.args if key == "dtype"), None)
    listed = apis.short(at.event.name) in apis.LOWER_PRECISION | apis.FLOAT32_OPS
    if listed and isinstance(given, Api) and dtype_of(given) in LOW and explicit(at) is not None:
        yield at.finding(f"dtype= overrides autocast: the operation runs in {dtype_of(given)}")
