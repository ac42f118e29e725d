"""`amp-doctor probe SCRIPT`: options -> a probed run of the script, its report and the exit status."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import combinations
from typing import TYPE_CHECKING, Any

import click

from amp_doctor.cli import INTERRUPTED
from amp_doctor.cli.cuda_amp import cuda_amp
from amp_doctor.cli.diagnosed import Destination, preload, report_options
from amp_doctor.cli.imports import file_of
from amp_doctor.cli.output import complain
from amp_doctor.cli.progress import StepLine
from amp_doctor.cli.proof import Proof, was_cut
from amp_doctor.errors import AmpDoctorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.cli.linted import Linted
    from amp_doctor.diagnosis.profile import Profile

# As in probe/settings.py, which is not imported to show a help text.
MODES = ("auto", "observe", "calibrate")
# The first release whose autocast is asked by device, and whose header has the lists of CUDA's autocast.
_OLDEST = (2, 4)


@click.command(
    "probe",
    # Whatever follows the script is the script's, options too.
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True, help="Optimizer steps to attempt.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="observe: the script as written. calibrate: without reduced precision, to see what it would lose. "
    "auto: the first fifth of the steps calibrated, the rest as written.",
)
@click.option(
    "--dry-run",
    type=click.Choice(["auto", "cuda", "off"]),
    default="auto",
    show_default=True,
    help="cuda: run a script written for CUDA on the CPU, under the rules of CUDA's autocast. auto: do so where there "
    "is no GPU and the script sets up AMP for CUDA. off: never.",
)
@click.option(
    "--profile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Save what was measured, and what --verify has shown, for `report`.",
)
@click.option(
    "--every", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Count every Nth step."
)
@click.option("--layers", metavar="GLOB", help="Count only layers whose names match.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the script after so long.",
)
@click.option(
    "--scratch",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Run in a copy of the working directory made there.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Then run the script again in FP32, as written and as recommended, and tell whether the recommendation holds.",
)
@click.option(
    "--verify-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps of each of these runs.  [default: as many as were probed]",
)
@click.option("--trial", default="", hidden=True, help="This run is one of those, and this is what to patch in.")
@report_options
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as with python -m.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(**options: Any) -> int:
    """Run a training script, unedited, for a few optimizer steps, and say what float16 and bfloat16 would lose.

    Everything after SCRIPT belongs to the script. Exit status: that of the script when it fails, 130 when it is
    interrupted, else 1 when there are findings at or above --fail-on.
    """
    if not options["script"]:
        raise click.UsageError("there is no script to probe; `amp-doctor probe train.py --lr 0.1`, say")
    check(options)
    destination = Destination.of(options)
    if destination.shows_source:
        destination = replace(destination, lint=beside(options["script"]))
    return hosted(options, destination)


def hosted(options: dict[str, Any], destination: Destination) -> int:
    """Run the script under the probe in this process, and report; the exit status."""
    probe = _probe()
    from amp_doctor.probe.settings import Settings

    target, script = _target(options, probe)
    settings = Settings(
        steps=options["steps"],
        mode=options["mode"],
        every=options["every"],
        layers=options["layers"],
        time_limit=options["time_limit"],
        dry_run=options["dry_run"] == "cuda",
        cuda_amp=_cuda_amp(options),
        script=script,
        trial=options["trial"],
        command=(*(("-m",) if options["as_module"] else ()), options["script"], *options["arguments"]),
    )
    preload(destination)
    proof = Proof.of(options) if options["verify"] or options["verify_steps"] else None
    diverted = destination.style != "text" and not destination.output
    line = StepLine()
    if not settings.trial:
        line.start(diverted)
    try:
        status: int = probe.run_script(
            target,
            settings,
            profile_file=os.path.abspath(options["profile"]) if options["profile"] else None,
            scratch=options["scratch"],
            report=_silent if settings.trial else _reporter(destination, line, options["fail_on"], proof),
            progress=line,
            stdout_to_stderr=diverted,
        )
    finally:
        line.close()
    return status


def beside(script: str) -> Linted | None:
    """What the linter finds in a script, where it is a file of source; None, with a word on stderr, when it fails."""
    if not script.endswith(".py") or not os.path.isfile(script):
        return None
    from amp_doctor.cli.linted import linted, speaks

    try:
        return linted(script) if speaks() else None
    except AmpDoctorError as error:
        complain(str(error))
        return None


def check(options: dict[str, Any]) -> None:
    """What would only be found out after the script has run for minutes."""
    keys = [key for key in ("profile", "output", "html") if options[key]]
    places = {key: os.path.abspath(options[key]) for key in keys}
    for first, second in combinations(keys, 2):
        if places[first] == places[second]:
            raise click.UsageError(f"--{first} and --{second} name the same file")
    for key in keys:
        if key != "profile":  # that is tried by the runner, likewise before the script
            _check_writable(f"--{key}", places[key])


def _check_writable(option: str, path: str) -> None:
    fresh = not os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if fresh:
            with contextlib.suppress(FileNotFoundError):  # another rank has tried the same
                os.unlink(path)
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror or error}") from error


def _cuda_amp(options: dict[str, Any]) -> str:
    """Where the script sets up AMP for CUDA, as far as that is to be emulated; a calibration takes it away anyway."""
    if options["dry_run"] != "auto" or options["mode"] == "calibrate":
        return ""
    file = file_of(options["script"], options["as_module"])
    return cuda_amp(file, options["arguments"], os.environ)


def _probe() -> Any:
    """The module that runs scripts; torch is loaded with it."""
    if find_spec("torch") is None:
        raise AmpDoctorError("probe needs torch, which is not installed here: pip install 'amp-doctor[probe]'")
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # it may come from elsewhere, as its own build
        release = metadata.version("torch")
        if tuple(map(int, release.split(".")[:2])) < _OLDEST:
            raise AmpDoctorError(f"probe needs torch 2.4 or newer; here is {release}: pip install 'amp-doctor[probe]'")
    try:
        return import_module("amp_doctor.probe.run")
    except (ImportError, OSError) as error:
        raise AmpDoctorError(f"torch cannot be loaded: {error}") from error


def _target(options: dict[str, Any], probe: Any) -> tuple[Any, str]:
    """What to run, and the path that the profile is filed under."""
    name: str = options["script"]
    if options["as_module"]:
        return probe.Target(path=None, module=name, arguments=options["arguments"]), name
    return probe.Target(path=name, module=None, arguments=options["arguments"]), name


def _silent(_profile: Profile, script_status: int | None) -> int:
    """Whoever started a trial reads its profile."""
    return script_status or 0


def _reporter(
    destination: Destination, line: StepLine, fail_on: str, proof: Proof | None = None
) -> Callable[[Profile, int | None], int]:
    def report(profile: Profile, script_status: int | None) -> int:
        """Print the report; the script's own failure outweighs what was found."""
        line.close()
        try:
            advice = proof.given(profile, script_status) if proof is not None else None
            status = destination.deliver(profile, fail_on, before="\n", advice=advice)
            status = INTERRUPTED if was_cut(advice) else status
            if proof is not None:
                proof.save(profile, advice)
        except (AmpDoctorError, click.ClickException) as error:
            complain(str(error) if isinstance(error, AmpDoctorError) else error.format_message())
            status = error.exit_code
        except Exception:  # noqa: BLE001 - it must not look like a failure of the script around it
            from amp_doctor.cli import bug

            status = bug()
        return status if script_status is None else script_status

    return report
