"""One training step of a running script, written down as it really ran.

A TorchFunctionMode sees every call of torch made from Python, above autograd and autocast. Control flow is not traced
but has happened: the graph is of this step, with its sizes and branches. What runs below Python (compiled code,
TorchScript) is not seen; its results enter as recorded values, with a note.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.data import dataloader
from torch.utils.weak import WeakIdKeyDictionary

from amp_doctor.probe.asked_dtypes import chained
from amp_doctor.probe.call_kinds import CASTS, COLLECTIVES, OPENED, QUIET, VIEWS
from amp_doctor.probe.calls import apply_function
from amp_doctor.probe.careful import Careful
from amp_doctor.probe.names import Names, calling_line
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.random_calls import may_draw
from amp_doctor.probe.saved import in_backward
from amp_doctor.probe.tape import FUNCTION, METHOD, Entry, Tape, given
from amp_doctor.probe.write_graph import graph_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.recorded import Recording


class Recorder(TorchFunctionMode):
    """Records between `start` and `stop`; every call goes through unchanged.

    `names` are those of a session that meets the modules itself; without them the recorder does. `hidden` tells whether
    an optimizer is stepping, which is not recorded; without it the recorder listens to optimizers. `limit` is in bytes.
    `inside` tells whether the script has autocast on, as it is written.
    """

    def __init__(
        self,
        names: Names | None = None,
        hidden: Callable[[], bool] | None = None,
        limit: int = 1 << 30,
        inside: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._meets = names is None
        self._names = names or Names()
        self.tape = Tape(limit)
        self._hidden = 0
        self._stepping, self._inside = hidden, inside
        self._optimizing = self._unrolled = 0
        # torch.compile's switch, while compiled functions run eagerly so that their calls are seen.
        self._compiled: bool | None = None
        self._on = self._installed = self._paused = False
        # Where that was inside a call that it was seeing, such as a backward pass with optimizers in it, torch puts it
        # back on its stack of modes after the call.
        self.cancelled = False
        self._modules: list[nn.Module] = []
        self._handles: list[Any] = []
        self._patches = Patches()
        self._apply_seen: Any = None
        self._careful = Careful(self)
        # Gradients, and what was made of them: clipping and the like is no part of the graph.
        self._gradients = WeakIdKeyDictionary()
        self._met_gradients = False

    def start(self) -> None:
        """See the calls of this thread from now on."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        if self._stepping is None:
            self._handles += [
                register_optimizer_step_pre_hook(self._hide),
                register_optimizer_step_post_hook(self._show),
            ]
        self._patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._unseen)
        self._patches.wrap(torch.autograd, "backward", self._backward)
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder._apply(cls, super(_SingleLevelFunction, cls).apply, args, kwargs)  # type: ignore[misc]

        self._apply_seen = _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            self._compiled, dynamo.config.disable = dynamo.config.disable, True
        self._on = self._installed = True
        self.cancelled = False
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> Recording:
        """See no more; the graph of what was seen."""
        self.cancel()
        return graph_of(self.tape, self._names)

    def cancel(self) -> None:
        """See no more; twice is once."""
        self._on = False
        if not self._installed:
            return
        self._installed, self.cancelled = False, True
        if self._compiled is not None:
            sys.modules["torch._dynamo"].config.disable, self._compiled = self._compiled, None
        if _get_current_function_mode() is self:
            self.__exit__(None, None, None)
        if vars(_SingleLevelFunction).get("apply") is self._apply_seen:  # a probe within a probe has its own
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        self._patches.undo()
        while self._handles:
            self._handles.pop().remove()
        self.tape.close()

    # --- what is seen -------------------------------------------------------------------------------------------

    def give_up(self, error: Exception) -> None:
        """See no more, and say why."""
        self._on = False
        self.tape.entries.clear()
        self.tape.notes = [f"the step could not be recorded: {error}"]

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._on or name in QUIET or self._looks_away():
            return func(*args, **kwargs)
        if getattr(func, "__module__", "") == COLLECTIVES:
            return self._exchange(func, args, kwargs)
        if name == "__get__":
            return self._attribute(func, args, kwargs)
        if name == "__set__":
            return self._assigned(func, args, kwargs)
        opened = OPENED.get(func)
        if opened is not None:
            with self:
                return opened(*args, **kwargs)
        if func is Tensor.backward:
            return self._call(METHOD, "backward", func, args, kwargs, backward=True)
        if getattr(Tensor, name, None) is func:
            return self._call(METHOD, name, func, args, kwargs)
        return self._call(FUNCTION, func, func, args, kwargs)

    def _call(
        self, kind: str, target: Any, func: Any, args: Any, kwargs: dict[str, Any], *, backward: bool = False
    ) -> Any:
        tape = self.tape
        tensors = given(kwargs.values(), given(args))
        if self._met_gradients and not backward and any(tensor in self._gradients for tensor, _ in tensors):
            result = func(*args, **kwargs)
            for tensor, _ in given([result]):
                self._gradients[tensor] = True
            return result
        entry, draws = None, not backward and may_draw(func)
        with self._careful, torch._C.DisableTorchFunction():
            if draws:
                tape.before()
            entry = self._entry(kind, target, args, kwargs)
            entry.backward = backward
        self._hidden += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self._hidden -= 1
        if entry is not None:
            with self._careful, torch._C.DisableTorchFunction():
                tape.call(entry, tensors, result, draws=draws)
                if target in CASTS and result is args[0]:
                    tape.same(result, entry.args[0], once=chained())
        return result

    def _entry(self, kind: str, target: Any, args: Any, kwargs: Any) -> Entry:
        tape, source = self.tape, calling_line()
        entry = Entry(kind, target, tape.argument(args, source), tape.argument(kwargs, source), source=source)
        entry.module = self._modules[-1] if self._modules else None
        entry.grad = torch.is_grad_enabled() or self._unrolled > 0
        entry.inside = self._inside()
        if torch.is_autocast_enabled("cpu"):
            entry.autocast = torch.get_autocast_dtype("cpu")
        return entry

    def _attribute(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.__self__.__name__
        if name in VIEWS:
            return self._call(FUNCTION, getattr, lambda tensor, _: func(tensor), (args[0], name), {})
        result = func(*args, **kwargs)
        if name == "dtype":
            self.tape.dtypes.read(args[0], result)
        if name == "grad" and isinstance(result, Tensor):
            self._gradients[result] = self._met_gradients = True
        return result

    def _exchange(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Other ranks answer once: what came from them enters as a recorded value, and is not asked for again."""
        tensors = given(kwargs.values(), given(args))
        if any(one.requires_grad for one, _ in tensors):
            return self._call(FUNCTION, func, func, args, kwargs)  # a replay says that it cannot be made
        result = func(*args, **kwargs)
        self.tape.received(one for one, _ in tensors)
        return result

    def _assigned(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.__self__.__name__
        if name == "requires_grad":
            return self._call(METHOD, "requires_grad_", lambda tensor, on: tensor.requires_grad_(on), args, kwargs)
        if name == "data":
            self.tape.forget(args[0])
        return func(*args, **kwargs)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on or self._looks_away():
                return original(*args, **kwargs)
            return self._call(FUNCTION, original, original, args, kwargs, backward=True)

        return backward

    def _apply(self, function: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A `torch.autograd.Function` is one call with a backward of its own; a reentrant checkpoint is none."""
        if not self._on or self._looks_away():
            return original(*args, **kwargs)
        if function is torch.utils.checkpoint.CheckpointFunction:
            self._unrolled += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._unrolled -= 1
        called = (function, *args)

        def run(_: Any, *rest: Any) -> Any:
            return original(*rest, **kwargs)

        return self._call(FUNCTION, apply_function, run, called, {})

    # --- what is not --------------------------------------------------------------------------------------------

    def _looks_away(self) -> bool:
        if self._hidden or in_backward():
            return True
        # A closure that an optimizer calls is part of the step; the optimizer's own arithmetic is not.
        stepping = self._stepping() if self._stepping is not None else self._optimizing > 0
        return stepping and not torch.is_grad_enabled()

    def _hide(self, _: Any, args: Any, kwargs: Any) -> None:
        self._optimizing += 1
        if len(args) < 2 and not kwargs:  # but for the optimizer itself
            self.pause()

    def _show(self, *_: Any) -> None:
        self._optimizing = max(0, self._optimizing - 1)
        self.resume()

    def pause(self) -> None:
        """An optimizer steps, and calls no closure: its arithmetic is not even looked at."""
        if self._installed and not self._paused and _get_current_function_mode() is self:
            self._paused = True
            self.__exit__(None, None, None)

    def resume(self) -> None:
        """It has stepped."""
        if self._paused:
            self._paused = False
            if self._installed:
                self.__enter__()  # type: ignore[no-untyped-call]

    def _unseen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unseen(*args: Any, **kwargs: Any) -> Any:
            self._hidden += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._hidden -= 1

        return unseen

    # --- modules ------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if not self._on or self._looks_away() or _get_current_function_mode() is None:
            return
        with self._careful, torch._C.DisableTorchFunction():
            if not self._modules:
                if self._meets and self._names.of(module) is None:
                    self._names.meet(module)
                for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                    self.tape.name(tensor, path, self._names.holder(tensor))
        self._modules.append(module)

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module in self._modules:
            while self._modules.pop() is not module:
                pass
