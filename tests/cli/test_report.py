"""`amp-doctor report`: saved profiles in, a report out."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft4Validator

from amp_doctor.diagnosis.profile import Profile, Source
from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.diagnosis.symptoms import findings
from tests.conftest import ROOT
from tests.invoke import amp_doctor
from tests.report.samples import HEAD, SICK

pytestmark = pytest.mark.usefixtures("here")

WELL = replace(SICK, layers=(HEAD,), operators=(), first_nonfinite=None, loss=(1.0, 0.5), scaler=())


def saved(name: str, profile: Profile) -> str:
    Path(name).write_text(json.dumps(to_values(profile)))
    return name


def test_a_profile_is_rendered_and_its_findings_decide_the_status() -> None:
    assert findings(SICK) != []
    done = amp_doctor("report", saved("sick.json", SICK))
    assert done.status == 1
    assert done.out.startswith("Verdict: ")
    assert done.err == ""
    assert findings(WELL) == []
    assert amp_doctor("report", saved("well.json", WELL)).status == 0


@pytest.mark.parametrize(("fail_on", "status"), [("error", 1), ("warning", 1), ("note", 1), ("never", 0)])
def test_fail_on(fail_on: str, status: int) -> None:
    assert "error" in {finding.severity for finding in findings(SICK)}
    assert amp_doctor("report", saved("sick.json", SICK), "--fail-on", fail_on).status == status


def test_json_is_the_contract_and_reads_back() -> None:
    done = amp_doctor("report", "--output-format", "json", saved("sick.json", SICK))
    document = json.loads(done.out)
    assert list(document) == ["schema", "tool", "profile", "findings", "recommendation"]
    assert (document["schema"], document["tool"]["name"]) == (1, "amp-doctor")
    assert to_values(from_values(document["profile"], "")) == to_values(SICK)
    told = {(one["code"], one["layer"], one["line"]) for one in document["findings"]}
    assert told == {(one.code, one.layer, one.span.line) for one in findings(SICK)}
    assert {"code", "name", "severity", "confidence", "message", "path", "line", "column", "url"} <= document[
        "findings"
    ][0].keys()
    assert document["recommendation"]["verified"] is None
    Path("whole.json").write_text(done.out)
    assert amp_doctor("report", "whole.json").out == amp_doctor("report", "sick.json").out


def test_output_goes_to_a_file_without_colours(here: Path) -> None:
    name = saved("sick.json", SICK)
    done = amp_doctor("report", name, "--output", "report.txt", "--color", "always")
    assert (done.status, done.out) == (1, "")
    assert (here / "report.txt").read_text() == amp_doctor("report", name).out
    refused = amp_doctor("report", name, "--output", "no/such/place")
    assert refused.status == 2
    assert "No such file or directory" in refused.err


def test_colours_and_width() -> None:
    name = saved("sick.json", SICK)
    assert "\x1b[" in amp_doctor("report", "--color", "always", name).out
    assert "\x1b[" not in amp_doctor("report", name).out
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "60")
        narrow = amp_doctor("report", name).out
    # Code to paste is not broken.
    prose = narrow.partition("\nTo paste\n")[0] + narrow.partition("\nWhat the verdict rests on\n")[2]
    assert max(len(line) for line in prose.splitlines()) <= 60


def test_paths_are_told_from_the_working_directory(here: Path) -> None:
    layers = tuple(replace(layer, source=Source(str(here / "src" / "model.py"), 7)) for layer in SICK.layers)
    out = amp_doctor("report", saved("p.json", replace(SICK, layers=layers))).out
    assert "src/model.py:7" in out
    assert str(here) not in out


def test_ranks_are_added_up() -> None:
    names = [saved(f"rank{rank}.json", replace(WELL, seconds=float(rank))) for rank in range(3)]
    one, three = amp_doctor("report", names[0]).out, amp_doctor("report", *names).out
    assert "1 layer, 199,998 elements" in one
    assert "1 layer, 599,994 elements" in " ".join(three.split())
    assert "2.0 s, 3 ranks" in three


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON: line 1, Expecting value"),
        (b"{}", "not a profile of amp-doctor (expected an object with `schema` and `layers`)"),
        (b"[1, 2]", "not a profile of amp-doctor"),
        (b"\x7fELF\x02\x01\xff\xfe", "not a profile of amp-doctor: not UTF-8 text"),
        (b"loss 0.3\n", "not JSON: line 1, Expecting value"),
        (b'{"schema": 2, "layers": []}', "schema 2 is newer than amp-doctor"),
        (b'{"schema": "x", "layers": []}', "schema 'x' is newer than amp-doctor"),
        (b'{"schema": 1, "layers": []}', "a broken profile: KeyError: "),
        (b"[" * 100_000, "not a profile of amp-doctor: nested too deeply"),
    ],
)
def test_what_is_no_profile_is_refused_in_a_line(here: Path, text: bytes, words: str) -> None:
    (here / "p.json").write_bytes(text)
    done = amp_doctor("report", "p.json")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"amp-doctor: p.json: {words}")
    assert done.err.count("\n") == 1


def test_a_truncated_profile_is_refused(here: Path) -> None:
    whole = json.dumps(to_values(SICK))
    for length in (1, len(whole) // 2, len(whole) - 1):
        (here / "p.json").write_text(whole[:length])
        done = amp_doctor("report", "p.json")
        assert done.status == 2
        assert done.err.startswith("amp-doctor: p.json: not JSON: line 1, ")
        assert done.err.endswith(" (cut off?)\n")


def test_files_that_cannot_be_read_are_named(here: Path) -> None:
    assert amp_doctor("report", "gone.json").err == "amp-doctor: gone.json: No such file or directory\n"
    assert amp_doctor("report", str(here)).err == f"amp-doctor: {here}: Is a directory\n"
    assert amp_doctor("report").status == 2


def test_profiles_that_do_not_belong_together_are_not_merged() -> None:
    first = saved("a.json", SICK)
    other = amp_doctor("report", first, saved("b.json", replace(SICK, mode="observe")))
    assert (other.status, other.err) == (
        2,
        "amp-doctor: b.json: its mode is 'observe', that of a.json is 'auto'; such profiles cannot be merged\n",
    )
    script = amp_doctor("report", first, saved("b.json", replace(SICK, script="other.py")))
    assert "its script is 'other.py', that of a.json is 'train.py'" in script.err
    assert "a.json: given twice" in amp_doctor("report", first, first).err


def test_a_terminal_without_unicode_is_no_obstacle() -> None:
    named = replace(SICK, layers=(replace(SICK.layers[0], name="größe"), *SICK.layers[1:]))
    command = [sys.executable, "-m", "amp_doctor", "report", saved("p.json", named)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"gr\\xf6\\xdfe" in done.stdout
    assert b"\\u2581" not in done.stdout
    assert done.stdout.isascii()


def test_neither_torch_nor_the_linter_is_loaded() -> None:
    code = (
        f"import sys\nfrom amp_doctor.cli import status_of\nstatus_of(['report', {saved('p.json', SICK)!r}])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "amp_doctor.diagnosis.symptoms" in loaded
    assert not {"torch", "libcst", "numpy", "rich.console", "amp_doctor.lint"} & set(loaded)


def test_sarif_points_at_the_lines_of_the_layers() -> None:
    done = amp_doctor("report", "--output-format", "sarif", saved("sick.json", SICK))
    assert done.status == 1
    document = json.loads(done.out)
    schema = json.loads((ROOT / "tests" / "data" / "sarif-schema-2.1.0.json").read_text("utf-8"))
    Draft4Validator(schema).validate(document)
    [run] = document["runs"]
    places = {
        (
            result["ruleId"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in run["results"]
    }
    assert places == {(one.code, one.path, one.span.line) for one in findings(SICK)}
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {one.code for one in findings(SICK)}


@pytest.mark.parametrize("options", [("--format", "html", "-o", "r.html"), ("--html", "r.html")])
def test_a_page_is_written_beside_or_in_the_place_of_the_text(here: Path, options: tuple[str, ...]) -> None:
    done = amp_doctor("report", saved("sick.json", SICK), *options)
    assert done.status == 1
    assert done.out.startswith("Verdict: ") == (options[0] == "--html")
    text = (here / "r.html").read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>\n")
    assert "encoder.rnn" in text


def test_the_page_has_what_the_linter_finds_in_the_script(here: Path) -> None:
    (here / "train.py").write_text("import torch\nscaler = torch.cuda.amp.GradScaler()\n")
    amp_doctor("report", saved("sick.json", SICK), "--html", "r.html")
    assert "deprecated-gradscaler" in (here / "r.html").read_text("utf-8")
    # A script that is gone is no obstacle.
    (here / "train.py").unlink()
    assert amp_doctor("report", "sick.json", "--html", "r.html").err == ""
    assert "deprecated-gradscaler" not in (here / "r.html").read_text("utf-8")


def test_a_page_is_not_printed_on_a_terminal() -> None:
    name = saved("sick.json", SICK)
    assert amp_doctor("report", "--format", "html", name).out.startswith("<!DOCTYPE html>")
    command = [sys.executable, "-m", "amp_doctor", "report", "--format", "html", name]
    mine, terminal = pty.openpty()
    told = os.environ | {"PYTHONPATH": str(ROOT)}
    refused = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, env=told, text=True, check=False)
    os.close(terminal)
    os.close(mine)
    assert refused.returncode == 2
    assert "--format html goes with -o FILE" in refused.stderr
