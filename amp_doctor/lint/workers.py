"""Tasks -> results from forked processes; a process that dies or hangs costs its task, never the run.

Forked rather than spawned: what the parent has imported and read is shared, and nothing is sent but a number
to the worker and the result back. The standard pools lose the run when a worker dies, as it does when a file
is nested so deeply that the native parser exhausts its stack.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")

STACK = 256 << 20
RECURSION = 20_000
# A task that does not even compute is given up after this many times its seconds.
IDLE = 20

_NUMBER = struct.Struct("=q")


@dataclass(frozen=True, slots=True)
class Died:
    """There is no result because the worker came to grief; `reason` is in plain words."""

    reason: str


@dataclass(slots=True)
class _Worker(Generic[T]):
    """A process at work, and the ends of the pipes to it."""

    pid: int
    tasks: int
    results: int
    task: int = -1
    deadline: float = 0.0


def can_fork() -> bool:
    """Windows cannot; there everything runs in this process."""
    return hasattr(os, "fork")


def in_workers(
    tasks: Sequence[T],
    work: Callable[[T], R],
    jobs: int,
    patience: Callable[[T], float],
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[tuple[int, R | Died]]:
    """Index and result of every task, in the order they are done; tasks are begun in the order given.

    `patience` is how many seconds of computing a task may take; a busy machine does not count. `meanwhile` is
    done in this process once the others are at work.
    """
    if not can_fork():
        for index, task in enumerate(tasks):
            yield index, work(task)
        return
    import gc
    import select

    # Collections in the children would touch, and so copy, every page they share with us.
    gc.freeze()
    waiting = list(reversed(range(len(tasks))))
    workers: dict[int, _Worker[T]] = {}
    try:
        for _ in range(min(jobs, len(tasks))):
            _start(workers, tasks, work, waiting.pop(), patience)
        if meanwhile is not None:
            meanwhile()
        while workers:
            left = min(worker.deadline for worker in workers.values()) - time.monotonic()
            ready = select.select(list(workers), [], [], max(left, 0))[0]
            for results in ready:
                worker = workers[results]
                done = _receive(results)
                if done is None:
                    yield worker.task, Died(_cause(_stop(workers, worker), patience(tasks[worker.task])))
                    if waiting:
                        _start(workers, tasks, work, waiting.pop(), patience)
                    continue
                yield worker.task, done
                if waiting:
                    index = waiting.pop()
                    _assign(worker, index, patience(tasks[index]))
                else:
                    _stop(workers, worker)
            for worker in [w for w in workers.values() if w.deadline < time.monotonic()]:
                _stop(workers, worker)
                yield worker.task, Died("it did not come to an end")
                if waiting:
                    _start(workers, tasks, work, waiting.pop(), patience)
    finally:
        for worker in list(workers.values()):
            _stop(workers, worker)
        gc.unfreeze()


def _start(
    workers: dict[int, _Worker[T]],
    tasks: Sequence[T],
    work: Callable[[T], R],
    index: int,
    patience: Callable[[T], float],
) -> None:
    task_end, task_start = os.pipe()
    result_end, result_start = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for worker in workers.values():
                os.close(worker.tasks)
                os.close(worker.results)
            os.close(task_start)
            os.close(result_end)
            _serve(tasks, work, patience, task_end, result_start)
            status = 0
        finally:
            # Nothing of the parent may happen twice: no flush of its buffers, no exit handlers.
            os._exit(status)
    os.close(task_end)
    os.close(result_start)
    worker = workers[result_end] = _Worker(pid, task_start, result_end)
    _assign(worker, index, patience(tasks[index]))


def _assign(worker: _Worker[T], index: int, seconds: float) -> None:
    worker.task = index
    worker.deadline = time.monotonic() + IDLE * seconds
    with suppress(BrokenPipeError):  # it is dead already; the end of its results will say so
        os.write(worker.tasks, _NUMBER.pack(index))


def _stop(workers: dict[int, _Worker[T]], worker: _Worker[T]) -> int:
    """End a worker whatever it is doing, and say how it ended."""
    import signal

    del workers[worker.results]
    os.close(worker.tasks)
    os.close(worker.results)
    ended, status = os.waitpid(worker.pid, os.WNOHANG)
    if not ended:
        # One whose results have ended is about to go by itself, and then says why.
        os.kill(worker.pid, signal.SIGKILL)
        _, status = os.waitpid(worker.pid, 0)
    return status


def _cause(status: int, seconds: float) -> str:
    import signal

    if not os.WIFSIGNALED(status):
        return "the process ended"
    number = os.WTERMSIG(status)
    if number == signal.SIGVTALRM:
        return f"it took more than {seconds:.0f} seconds"
    if number == signal.SIGSEGV:
        return "the parser ran out of stack, it is nested too deeply"
    return f"the process was ended by {signal.Signals(number).name}, perhaps for want of memory"


def _receive(results: int) -> R | None:
    """The next result of a worker; None when it has died."""
    import pickle

    size = _read(results, _NUMBER.size)
    if size is None:
        return None
    body = _read(results, _NUMBER.unpack(size)[0])
    # Written by our own child a moment ago, so it may be trusted.
    return None if body is None else pickle.loads(body)


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _serve(
    tasks: Sequence[T], work: Callable[[T], R], patience: Callable[[T], float], task_end: int, result_start: int
) -> None:
    """The life of a worker. It runs in a thread because only a new thread can have a larger stack."""
    import signal
    import threading

    # An interrupt is the parent's to handle: it ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(RECURSION)

    def serve() -> None:
        import pickle

        while number := _read(task_end, _NUMBER.size):
            task = tasks[_NUMBER.unpack(number)[0]]
            # When the time is over, the signal ends this process, in the midst of native code too.
            signal.setitimer(signal.ITIMER_VIRTUAL, patience(task))
            body = pickle.dumps(work(task), pickle.HIGHEST_PROTOCOL)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            _write(result_start, _NUMBER.pack(len(body)) + body)

    try:
        threading.stack_size(STACK)
        thread = threading.Thread(target=serve)
        thread.start()
    except (RuntimeError, ValueError):
        serve()  # too little memory for such a stack
    else:
        thread.join()


def _write(descriptor: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]
