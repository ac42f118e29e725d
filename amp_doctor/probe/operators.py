"""Matrix products and dropouts called outside the modules of torch.nn: what a forward hook cannot see.

Attention written by hand keeps its logits inside one module's forward; they overflow there while every module output is
fine. CUDA's autocast runs these functions in half precision (lower_precision_fp in torch's autocast_mode.h), so the
largest magnitude of their results decides.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor
from torch.overrides import TorchFunctionMode

from amp_doctor.diagnosis.profile import Operator
from amp_doctor.numerics.formats import FP16, tellable
from amp_doctor.probe.count import countable
from amp_doctor.probe.device_count import on_host
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.names import calling_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Source
    from amp_doctor.probe.names import Record
    from amp_doctor.probe.session import Session

    # Operator, layer and line.
    Place = tuple[str, Record | None, Source | None]

WATCHED: dict[Any, str] = {
    torch.matmul: "matmul",
    Tensor.matmul: "matmul",
    Tensor.__matmul__: "matmul",
    torch.bmm: "bmm",
    Tensor.bmm: "bmm",
    torch.mm: "mm",
    Tensor.mm: "mm",
    torch.baddbmm: "baddbmm",
    Tensor.baddbmm: "baddbmm",
    torch.addmm: "addmm",
    Tensor.addmm: "addmm",
    torch.einsum: "einsum",
    F.linear: "linear",
    F.conv1d: "conv1d",
    F.conv2d: "conv2d",
    F.conv3d: "conv3d",
    F.dropout: "dropout",
}


class Operators(TorchFunctionMode):
    """Notes the results of the watched functions; every call goes through unchanged."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._on = False

    def start(self) -> None:
        """See the calls from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self._on = True

    def stop(self) -> None:
        """See no more; only when no other mode was entered on top and left there."""
        if self._on:
            self._on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in WATCHED and self._on:
            with self._session.guard("operators"):
                self._note(WATCHED[func], result)
        return result

    def _note(self, name: str, result: Any) -> None:
        record = self._session.activations.innermost
        values = countable(result) if record is None or not record.is_torch else None
        if values is None or not torch.is_grad_enabled():
            return
        if self._session.scalers.outside and values.dtype is torch.float32:
            return
        self._session.operators.note(name, record, values)


class OperatorLog:
    """The largest result per operator, layer and line, of those that come near the end of FP16's range."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: dict[Place, tuple[float, str]] = {}
        # What autocast has refused, which ended the script.
        self.refused: list[Operator] = []
        # Results on a GPU, until the step is read.
        self._waiting: list[tuple[Place, str, Tensor]] = []

    def note(self, name: str, record: Record | None, values: Tensor) -> None:
        """Keep the result when it would overflow.

        The very end of a dtype's range is the fill of a mask made from torch.finfo, such as Longformer multiplies: in
        half it would be the end of that range.
        """
        dtype = dtype_name(values.dtype)
        if not on_host(values.device):
            self._waiting.append(((name, record, calling_line()), dtype, values.abs().amax().float()))
            return
        low, high = (limit.item() for limit in torch.aminmax(values))
        amax = max(high, -low)
        if amax >= FP16.overflow_threshold or isnan(amax):
            if not isfinite(amax):
                self._session.nonfinite.met(record, "forward", values, name)
            self._keep((name, record, calling_line()), dtype, amax)

    def read(self) -> None:
        """Read the largest magnitudes of a step from a GPU, all at once."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            largest = torch.stack([amax.to(waiting[0][2].device) for _, _, amax in waiting]).tolist()
            for (key, dtype, _), amax in zip(waiting, largest, strict=True):
                self._keep(key, dtype, amax)

    def _keep(self, key: Place, dtype: str, amax: float) -> None:
        filled = amax == torch.finfo(getattr(torch, dtype)).max
        known = self._found.get(key, (0.0, ""))[0]
        if amax >= FP16.overflow_threshold and not filled and (not known or tellable(amax) > tellable(known)):
            self._found[key] = (amax, dtype)

    def operators(self, full: Callable[[Record], str]) -> tuple[Operator, ...]:
        """What was found, worst first."""
        found = [
            Operator(name, full(record) if record else "", source, "O1/float16", "overflow", dtype, amax)
            for (name, record, source), (amax, dtype) in self._found.items()
        ]
        return (*self.refused, *sorted(found, key=lambda one: -one.amax))
