"""The script runs as in a plain run, and is stopped after its steps, whatever it does."""

from __future__ import annotations

import json
import os
import py_compile
import signal
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.probe.running import TRAINING, Run, command, environment, found, plain, probed, write

if TYPE_CHECKING:
    from pathlib import Path

# --- as in a plain run --------------------------------------------------------------------------------------------------

SELF = """\
import sys
import os
me = sys.modules["__main__"]
assert me.__dict__ is globals()
print(sorted(vars(me)))
print(__name__, __file__, __package__, __cached__, __doc__, type(__loader__).__name__, __spec__ and __spec__.name)
print(__spec__ and (__spec__.origin, __spec__.parent), __annotations__, __builtins__)
print(sys.argv, sys.path[0], os.getcwd(), os.environ.get("TORCHDYNAMO_DISABLE"))
print([(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)])
print("torch" in sys.modules, "multiprocessing" in sys.modules)
"""

SCRIPTS = {
    "streams": "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.buffer.write(b'\\xff\\n')\n",
    "exit 3": "import sys\nsys.exit(3)\n",
    "exit 0": "import sys\nprint(1)\nsys.exit(0)\n",
    "exit none": "import sys\nsys.exit()\n",
    "exit text": "import sys\nsys.exit('no data')\n",
    "exit object": "import sys\nsys.exit([1, 2])\n",
    "exit large": "import sys\nsys.exit(259)\n",
    "exit negative": "import sys\nsys.exit(-1)\n",
    "raise": "def f():\n    raise ValueError('no data')\n\n\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
    "in handling": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']\n",
    "group": "raise ExceptionGroup('two', [ValueError(1), KeyError(2)])\n",
    "syntax": "print(1)\nx = = 2\n",
    "unicode": "print('\\ud800')\n",
    "hook": "import sys\nsys.excepthook = lambda kind, e, tb: print('hook', kind, e, tb.tb_lineno)\n{}['x']\n",
    "hook raises": "import sys\n\n\ndef hook(*a):\n    1 / 0\n\n\nsys.excepthook = hook\n{}['x']\n",
    "hook exits": "import sys\nsys.excepthook = lambda *a: sys.exit(7)\n{}['x']\n",
    "atexit": "import atexit\natexit.register(print, 'first')\natexit.register(print, 'second')\nprint('main')\n",
    "atexit after raise": "import atexit\natexit.register(print, 'last')\n{}['x']\n",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('t'))).start()\n",
    "thread raises": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()\n",
    "executor": "from concurrent.futures import ThreadPoolExecutor as E\nE(2).submit(print, 'x').result()\nprint('end')\n",
    "chdir": "import os\nos.mkdir('inner')\nos.chdir('inner')\nprint(os.path.basename(os.getcwd()))\nos.rmdir('../inner')\n",
    "stdin": "print(repr(input()))\n",
    "stdout replaced": "import io, sys\nsys.stdout = io.StringIO()\nprint('gone')\n",
    "stderr replaced": "import io, sys\nsys.stderr = io.StringIO()\n{}['x']\n",
    "pickle": "import pickle\n\n\nclass A:\n    pass\n\n\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n",
    "getsource": "import inspect\n\n\ndef f():\n    return 1\n\n\nprint(inspect.getsource(f))\n",
    "argparse": "import argparse\nargparse.ArgumentParser().parse_args(['--nope'])\n",
    "argparse main": "import argparse\nprint(argparse.ArgumentParser().prog)\n",
    "warning": "import warnings\nwarnings.warn('look', stacklevel=1)\nassert (1, 'x')\n",
    "recursion": "def f():\n    f()\n\n\ntry:\n    f()\nexcept RecursionError:\n    print('deep')\n",
    "import error": "import module_that_is_not_there\n",
    "local import": "import local\nprint(local.VALUE, local.__file__)\n",
    "os._exit": "import os, sys\nprint('flushed')\nsys.stdout.flush()\nos._exit(5)\n",
    "signal": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(5)\n",
    "own handler": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('mine'))\nos.kill(os.getpid(), 15)\n",
    "fork": "import os\npid = os.fork()\nif not pid:\n    os._exit(4)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    "fork and end": "import os\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    "gc": "import gc\nprint(gc.get_threshold(), gc.isenabled())\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_it_does_in_a_plain_run(tmp_path: Path, name: str) -> None:
    write(tmp_path, SCRIPTS[name])
    write(tmp_path, "VALUE = 7\n", "local.py")
    one, other = plain(tmp_path, "train.py", "a", "--steps"), probed(tmp_path, "train.py", "a", "--steps")
    assert (other.status, other.out, other.err) == (one.status, one.out, one.err)


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "a", "--b=c", "--", "-m"],
        ["./train.py"],
        ["pkg/../train.py"],
        ["link.py"],
        ["pkg"],
        ["pkg/"],
        ["app.zip", "--help"],
        ["train.pyc"],
        ["-m", "pkg", "--steps", "3"],
        ["-m", "pkg.inner"],
        ["-m", "train"],
    ],
    ids=" ".join,
)
def test_a_script_sees_itself_as_in_a_plain_run(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, SELF)
    for name in ("pkg/__main__.py", "pkg/inner.py"):
        write(tmp_path, SELF, name)
    write(tmp_path, "", "pkg/__init__.py")
    write(tmp_path, SELF, "elsewhere/real.py")
    (tmp_path / "link.py").symlink_to("elsewhere/real.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SELF)
    py_compile.compile(str(tmp_path / "train.py"), str(tmp_path / "train.pyc"))
    one, other = plain(tmp_path, *words), probed(tmp_path, *words)
    # Of what a script may look up in advance, multiprocessing alone is there.
    assert other.out.replace("False True", "False False") == one.out
    assert (other.status, other.err) == (one.status, one.err) == (0, "")


def test_the_script_imports_torch_itself(tmp_path: Path) -> None:
    """What it sets before the import takes effect."""
    write(tmp_path, "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n")
    assert probed(tmp_path, "train.py", OMP_NUM_THREADS="2").out == "1\n"


def test_a_script_without_torch_is_told_about(tmp_path: Path) -> None:
    write(tmp_path, "print(1)\n")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "1\n", "", 0, "finished")
    assert run.notes == "the script did not import torch"


WORKERS = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        # A worker may compute with tensors, even train: it is not ours to count.
        extra = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(extra.parameters(), lr=0.1)
        for _ in range(10):
            extra(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        return torch.tensor([float(index)])


if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(Squares(), 2, num_workers=2, multiprocessing_context="CONTEXT", persistent_workers=True)
    for epoch in range(3):
        for batch in loader:
            print(batch.flatten().tolist(), flush=True)
            model(batch).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_are_left_alone(tmp_path: Path, context: str) -> None:
    write(tmp_path, WORKERS.replace("CONTEXT", context))
    run = probed(tmp_path, "--steps", "8", "train.py")
    pairs = [f"[{number}.0, {number + 1}.0]\n" for number in (0, 2, 4, 6, 8, 10, 0, 2)]
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "".join(pairs), "", 8, "steps")
    assert "process" not in run.notes


# --- the stop -----------------------------------------------------------------------------------------------------------

LOOP = TRAINING + "for number in range(1000):\n    step()\n    print(number, flush=True)\n"


def test_a_script_is_stopped_after_its_steps(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    run = probed(tmp_path, "--steps", "5", "train.py")
    # The fifth step has been made; what follows it in the script has not.
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "0\n1\n2\n3\n", "", 5, "steps")


@pytest.mark.parametrize("handler", ["except Exception: pass", "except (ValueError, RuntimeError): pass"])
def test_except_exception_does_not_swallow_the_stop(tmp_path: Path, handler: str) -> None:
    code = f"while True:\n    try:\n        step()\n        print(1)\n    {handler}\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "1\n1\n", "", 3)


@pytest.mark.parametrize("handler", ["except:", "except BaseException:"])
def test_a_bare_except_is_met_again_and_then_ended(tmp_path: Path, handler: str) -> None:
    code = f"import atexit\natexit.register(print, 'atexit')\nwhile True:\n    try:\n        step()\n        print(1)\n    {handler}\n        print('caught')\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "1\n1\ncaught\ncaught\n", "", 3, "steps")
    assert "the script caught the stop" in run.notes
    assert run.report is not None


def test_one_swallowed_stop_is_no_firm_end(tmp_path: Path) -> None:
    code = "for _ in range(2):\n    try:\n        while True:\n            step()\n    except BaseException:\n        print('caught')\nprint('end')\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.steps, run.ended) == (0, "caught\ncaught\nend\n", 3, "steps")


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("raise RuntimeError('training failed')", "RuntimeError: training failed"),
        ("sys.exit(4)", "SystemExit: 4"),
        ("undefined", "NameError: name 'undefined' is not defined"),
    ],
)
def test_what_a_stopped_script_raises_is_a_note(tmp_path: Path, after: str, told: str) -> None:
    write(tmp_path, TRAINING + f"try:\n    while True:\n        step()\nexcept BaseException:\n    pass\n{after}\n")
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (0, "", 3, "steps")
    line = len(TRAINING.splitlines()) + 6
    assert f"after the stop the script raised {told} ({tmp_path}/train.py:{line})" in run.notes


def test_training_in_a_thread(tmp_path: Path) -> None:
    code = "import threading\nthread = threading.Thread(target=lambda: [step() for _ in range(100)])\nthread.start()\nthread.join()\nprint('joined')\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "joined\n", "", 3, "steps")


def test_training_in_a_thread_that_nobody_waits_for(tmp_path: Path) -> None:
    write(
        tmp_path, TRAINING + "import threading\nthreading.Thread(target=lambda: [step() for _ in range(100)]).start()\n"
    )
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (0, "", 3, "steps")


def test_training_in_an_executor(tmp_path: Path) -> None:
    code = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n    pool.submit(lambda: [step() for _ in range(100)]).result()\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (0, "", 3, "steps")


HURRY = """\
import sys
from amp_doctor.probe import alarm
from amp_doctor.cli import main
alarm.PATIENCE, alarm.GRACE = 1.0, 1.0
main()
"""


def hurried(where: Path, *words: str) -> Run:
    """A probe that waits a second where others wait a minute."""
    report, profile = where / "report.txt", where / "profile.json"
    line = command(*words, report=report, profile=profile)
    done = subprocess.run(
        [line[0], "-c", HURRY, *line[3:]], cwd=where, env=environment(), capture_output=True, check=False, text=True
    )
    return found(done.returncode, done.stdout, done.stderr, report, profile)


@pytest.mark.parametrize(
    "rest",
    [
        # The main thread waits for what a stopped thread will never say.
        "import queue, threading\nanswers = queue.Queue()\nthreading.Thread(target=lambda: [step() for _ in range(100)]).start()\nanswers.get()\n",
        # A thread of the script does not end, as the script was stopped before it could tell it to.
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\nwhile True:\n    step()\n",
        # The cleanup never ends, and takes no hint.
        "import time\ntry:\n    while True:\n        step()\nfinally:\n    while True:\n        try:\n            time.sleep(9)\n        except BaseException:\n            pass\n",
    ],
    ids=["main", "thread", "cleanup"],
)
def test_a_stopped_script_that_hangs_is_ended(tmp_path: Path, rest: str) -> None:
    write(tmp_path, TRAINING + rest)
    run = hurried(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "", "", 3, "steps")
    assert run.report is not None


# --- the time limit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["time.sleep(99)", "threading.Event().wait()", "while True:\n        pass"])
def test_the_time_limit_ends_a_script_that_does_not_step(tmp_path: Path, wait: str) -> None:
    code = f"""\
import atexit, threading, time
atexit.register(print, 'atexit')
try:
    {wait}
finally:
    print('finally')
"""
    write(tmp_path, code)
    run = probed(tmp_path, "--time-limit", "0.5", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "finally\natexit\n", "", 0, "time-limit")


def test_a_script_with_a_handler_of_its_own_is_ended_as_well(tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, lambda *a: print('mine'))\nwhile True:\n    step()\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "--steps", "100000000", "--time-limit", "6", "train.py")
    assert (run.status, run.out, run.err, run.ended) == (0, "", "", "time-limit")


def test_a_script_that_swallows_the_time_limit_is_ended(tmp_path: Path) -> None:
    code = "import time\nwhile True:\n    try:\n        time.sleep(99)\n    except BaseException:\n        print('no', flush=True)\n"
    write(tmp_path, code)
    run = hurried(tmp_path, "--time-limit", "0.5", "train.py")
    assert (run.status, run.out, run.err, run.ended) == (0, "no\n", "", "time-limit")
    assert "the script did not end within 1 s after the stop, and was ended" in run.notes


# --- interrupted, killed --------------------------------------------------------------------------------------------------


def signalled(where: Path, number: int, *words: str, **more: str) -> Run:
    """A probe that is sent a signal as soon as the script has said `now`."""
    report, profile = where / "report.txt", where / "profile.json"
    with subprocess.Popen(
        command(*words, report=report, profile=profile),
        cwd=where,
        env=environment(**more),
        # Jobs in the background of a shell ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return found(process.returncode, out, err, report, profile)


WAITING = "for _ in range(3):\n    step()\nprint('now', flush=True)\nimport time\ntime.sleep(60)\n"


def test_ctrl_c_prints_what_was_seen(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + WAITING)
    run = signalled(tmp_path, signal.SIGINT, "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (130, "", 3, "interrupted")
    assert run.report is not None


HANDLED = """\
import time
for _ in range(3):
    step()
try:
    print("now", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(1)
"""


def test_a_script_that_handles_ctrl_c_goes_its_own_way(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + HANDLED)
    run = signalled(tmp_path, signal.SIGINT, "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (1, "", 3, "interrupted")


def test_sigterm_leaves_a_report_and_ends_the_process(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + WAITING)
    run = signalled(tmp_path, signal.SIGTERM, "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (-signal.SIGTERM, "", 3, "interrupted")
    assert "ended by SIGTERM" in run.notes
    assert run.report is not None


def test_sigkill_leaves_the_profile(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + WAITING)
    run = signalled(tmp_path, signal.SIGKILL, "train.py")
    # Saved after the first step, and every few seconds.
    assert (run.status, run.report, run.steps, run.ended) == (-signal.SIGKILL, None, 1, "")
    assert [name for name in os.listdir(tmp_path) if "profile" in name] == ["profile.json"]


def test_os_exit_is_reported_first(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + "step()\nstep()\nimport os\nos._exit(5)\n")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (5, "", 2, "exception")
    assert "the script ended itself by os._exit(5)" in run.notes
    assert run.report is not None


# --- what a script leaves -------------------------------------------------------------------------------------------------


def test_files_saved_on_the_way_out_are_warned_about(tmp_path: Path) -> None:
    code = """\
import os
torch.save(model.state_dict(), "first.pt")
try:
    while True:
        step()
        torch.save(model.state_dict(), "each.pt")
finally:
    torch.save(obj=model.state_dict(), f="best.pt")
    with open("other.pt", "wb") as file:
        torch.save(model, file)
"""
    write(tmp_path, TRAINING + code)
    (tmp_path / "best.pt").write_text("precious")
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.err, run.steps) == (0, "", 3)
    assert run.notes.splitlines()[-3:] == [
        "the script saved first.pt, each.pt while it was probed",
        "WARNING: on its way out the stopped script saved best.pt, after these few steps. The file that was there before is gone.",
        "WARNING: on its way out the stopped script saved other.pt, after these few steps.",
    ]


def test_files_saved_in_atexit_are_warned_about(tmp_path: Path) -> None:
    code = "import atexit\natexit.register(lambda: torch.save({}, 'late.pt'))\nwhile True:\n    step()\n"
    write(tmp_path, TRAINING + code)
    assert "the stopped script saved late.pt" in probed(tmp_path, "--steps", "3", "train.py").notes


def test_compiling_is_switched_off_and_the_environment_is_given_back(tmp_path: Path) -> None:
    code = "model = torch.compile(model)\nprint(model(torch.ones(1, 4)).shape)\nstep()\n"
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "torch.Size([1, 1])\n", "", 1)
    assert "torch.compile was asked for" in run.notes


LIBRARY = """\
import atexit, os, signal, sys, threading
from amp_doctor.probe.run import Target, run_script
from amp_doctor.probe.settings import Settings

def state():
    import multiprocessing.process as p
    import torch
    return [
        sys.argv, list(sys.path), sys.modules["__main__"], {**os.environ, "TORCHINDUCTOR_CACHE_DIR": ""}, os.getcwd(), os._exit, sys.stdout,
        sys.stderr, signal.getsignal(signal.SIGTERM), threading.excepthook, p.BaseProcess.start, torch.save,
        torch.compile, sys.meta_path[:], sys.excepthook, threading.active_count(),
    ]

before = state()
seen = []
for words in (("train.py",), ("train.py", "raise"), ("train.py",)):
    report = lambda profile, status: seen.append((profile.steps.attempted, profile.ended, status)) or 9
    status = run_script(
        Target(words[0], None, words[1:]), Settings(steps=2), profile_file=None, scratch=None, report=report, progress=None
    )
    assert status == 9
assert state() == before, [(a, b) for a, b in zip(before, state()) if a != b]
print(seen)
"""


def test_nothing_is_left_behind_in_a_larger_program(tmp_path: Path) -> None:
    write(tmp_path, LIBRARY, "larger.py")
    write(tmp_path, TRAINING + "if sys.argv[1:]:\n    raise ValueError(sys.argv)\nwhile True:\n    step()\n")
    run = plain(tmp_path, "larger.py")
    assert run.status == 0, run.err
    assert run.out == "[(2, 'steps', None), (0, 'exception', 1), (2, 'steps', None)]\n"
    assert run.err.endswith("ValueError: ['train.py', 'raise']\n")


# --- where the output goes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mischief",
    [
        "sys.stdout.close()",
        "import os\nos.close(1)\nopen('other.txt', 'w')",
        "sys.stdout = None",
        "sys.stderr.close()",
        "sys.stdout = open('log.txt', 'w')",
        "import os\nos.dup2(os.open('log.txt', os.O_WRONLY | os.O_CREAT), 1)",
        "sys.stdout.write = lambda text: 1 / 0",
        "del sys.stdout",
    ],
)
def test_the_report_gets_through(tmp_path: Path, mischief: str) -> None:
    write(tmp_path, TRAINING + f"print('before')\nstep()\n{mischief}\n")
    words = [sys.executable, "-m", "amp_doctor", "probe", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("before\n")
    assert "Verdict: " in done.stdout
    assert done.stderr == ""


def test_json_has_stdout_for_itself(tmp_path: Path) -> None:
    code = "import os, subprocess\nprint('out')\nsys.stdout.buffer.write(b'\\xff\\n')\nsubprocess.run(['echo', 'child'])\nstep()\n"
    write(tmp_path, TRAINING + code)
    words = [sys.executable, "-m", "amp_doctor", "probe", "--output-format", "json", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["profile"]["steps"]["attempted"] == 1
    assert sorted(done.stderr.split(b"\n")) == [b"", b"child", b"out", b"\xff"]
