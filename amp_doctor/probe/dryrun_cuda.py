"""What `torch.cuda` and `torch.accelerator` answer under a dry run: a GPU, always idle, of which nothing is known."""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABCMeta
from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.autograd import profiler

from amp_doctor.probe.dryrun_devices import host

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

NAME = "CUDA emulated on a CPU by AMP Doctor"
# The first with native BF16: a dry run lets the script choose either of the two.
CAPABILITY = (8, 0)
MEMORY = 80 * 2**30
# Of a GPU that has no version of its own here.
VERSION = "12.4"
NCCL = (2, 21, 5)

_TYPES = "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor ShortTensor ByteTensor BoolTensor"
_NOTHING = (
    "_lazy_init init set_device synchronize empty_cache ipc_collect reset_peak_memory_stats "
    "reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached set_per_process_memory_fraction "
    "set_stream _record_memory_history set_sync_debug_mode check_error"
).split()
_ZERO = (
    "current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
    "max_memory_cached utilization memory_usage temperature power_draw clock_rate get_sync_debug_mode"
).split()


class Stream:
    """A stream on which everything is done at once."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = self.device_index = 0
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        return

    def query(self) -> bool:
        """Everything is done."""
        return True

    def is_capturing(self) -> bool:
        """There are no graphs."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """An event, recorded now."""
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_event(self, _event: Any) -> None:
        """It has happened."""

    def wait_stream(self, _stream: Any) -> None:
        """It has nothing to do."""


class Event:
    """A moment on the clock of the host."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._at: float | None = None

    def record(self, _stream: Any = None) -> None:
        """Now."""
        self._at = time.perf_counter()

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to `end`."""
        return 1000.0 * ((end._at or 0.0) - (self._at or 0.0))

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """It has happened."""

    def wait(self, _stream: Any = None) -> None:
        """It has happened."""


def pretend(patches: Patches) -> None:
    """Let `torch.cuda`, `torch.accelerator` and their streams answer."""
    for owner, answers in ((torch.cuda, _cuda()), (getattr(torch, "accelerator", None), _accelerator())):
        for name, answer in answers.items():
            if owner is not None and hasattr(owner, name):
                patches.replace(owner, name, answer)
    for name, ours in (("_StreamBase", Stream), ("_EventBase", Event)):
        # torch 2.4 imports torch._dynamo with the first optimizer, and that asks what kind of classes these are.
        base = getattr(import_module("torch._streambase"), name, None)
        if isinstance(base, ABCMeta):
            base.register(ours)
    for name in _TYPES.split():
        if hasattr(torch, name) and hasattr(torch.cuda, name):
            patches.replace(torch.cuda, name, getattr(torch, name))
    if torch.version.cuda is None:
        # Scripts take it apart, to see whether bfloat16 is supported. One module of torch says on import that there is
        # a CUDA without Triton: it is imported before.
        import_module("torch.utils.flop_counter")
        patches.replace(torch.version, "cuda", VERSION)
    patches.replace(torch.cuda.nccl, "version", _always(NCCL))
    patches.replace(profiler, "emit_nvtx", lambda *_args, **_kwargs: contextlib.nullcontext())
    patches.wrap(profiler.profile, "__init__", _of_the_host)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if hasattr(torch.cuda.nvtx, name):
            patches.replace(torch.cuda.nvtx, name, _always(0))


def _count() -> int:
    """One GPU, and under a launcher as many as it has started ranks here."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _always(answer: Any) -> Callable[..., Any]:
    def ask(*_args: Any, **_kwargs: Any) -> Any:
        return answer

    return ask


def _of_the_host(original: Callable[..., None]) -> Callable[..., None]:
    """A profile without the events of a GPU, of which there are none."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "use_cuda": False, "use_device": None})

    return init


class Graph:
    """What cannot be had; a class, as it stands in annotations."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("CUDA graphs are not emulated on the CPU: capture none in a dry run")


class Chosen(contextlib.nullcontext[None]):
    """The block in which a device is the current one: there is no other."""

    def __init__(self, *_args: Any) -> None:
        super().__init__()


def _cuda() -> dict[str, Any]:
    made: dict[str, Any] = {name: _always(None) for name in _NOTHING}
    made |= {name: _always(0) for name in _ZERO}
    properties = SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY,
        multi_processor_count=1,
        max_threads_per_multi_processor=2048,
        warp_size=32,
    )
    return made | {
        "is_available": _always(True),
        "is_initialized": _always(True),
        "_initialized": True,
        "device_count": _count,
        "get_device_name": _always(NAME),
        "get_device_capability": _always(CAPABILITY),
        "get_device_properties": _always(properties),
        "get_arch_list": _always(["sm_80"]),
        "is_bf16_supported": _always(True),
        "is_tf32_supported": _always(False),
        "mem_get_info": _always((MEMORY, MEMORY)),
        "memory_stats": lambda *_: defaultdict(int),
        "memory_summary": _always("no memory of a GPU is used: emulated on a CPU"),
        "memory_snapshot": lambda *_: [],
        "is_current_stream_capturing": _always(False),
        "can_device_access_peer": _always(False),
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *_: Stream(),
        "default_stream": lambda *_: Stream(),
        "stream": lambda *_: contextlib.nullcontext(),
        "device": Chosen,
        "device_of": Chosen,
        "default_generators": (torch.default_generator,),
        "CUDAGraph": Graph,
        "graph": Graph,
        # What is captured for speed computes the same without.
        "make_graphed_callables": lambda callables, *_args, **_kwargs: callables,
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "seed": lambda: _seed(torch.default_generator.seed()),
        "seed_all": lambda: _seed(torch.default_generator.seed()),
        "initial_seed": torch.default_generator.initial_seed,
        "get_rng_state": lambda *_args, **_kwargs: torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "set_rng_state": lambda state, *_args, **_kwargs: _set_state(state),
        "set_rng_state_all": lambda states: _set_state(states[0]),
    }


def _accelerator() -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(
        ("set_device_index", "set_device_idx", "synchronize", "set_stream", "empty_cache"), _always(None)
    )
    return made | {
        "is_available": _always(True),
        "device_count": _count,
        "current_accelerator": lambda *_args, **_kwargs: torch.device("cuda"),
        "current_device_index": _always(0),
        "device_index": Chosen,
        "current_device_idx": _always(0),
        "current_stream": lambda *_: Stream(),
        "memory_allocated": _always(0),
        "max_memory_allocated": _always(0),
        "memory_reserved": _always(0),
        "max_memory_reserved": _always(0),
    }


def _seed(seed: int) -> None:
    """There is one generator: that of the CPU."""
    torch.default_generator.manual_seed(int(seed))


def _set_state(state: Any) -> None:
    torch.default_generator.set_state(state.to(host("cuda")))
