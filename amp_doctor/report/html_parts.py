"""The parts of the HTML report in their order: what is text is told here, what is drawn gets its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor import __version__
from amp_doctor.diagnosis.profile import GRADIENTS
from amp_doctor.diagnosis.trust import trusted
from amp_doctor.finding import NOWHERE
from amp_doctor.report.html_frames import FRAMES, picker
from amp_doctor.report.html_text import bulleted, finding_item, listed, rows, tag, words
from amp_doctor.report.profile_advice import cost_lines, grounds_lines
from amp_doctor.report.profile_findings import closing
from amp_doctor.report.profile_measured import measured_lines, notes_lines
from amp_doctor.report.profile_proof import HEADS, STYLES, rows_of, said
from amp_doctor.report.profile_replay import HEADS as REPLAYED
from amp_doctor.report.profile_replay import INTRODUCTION, PRECISION, facts, speed_up, unrecorded
from amp_doctor.report.profile_replay import rows_of as replayed
from amp_doctor.report.profile_timeline import timeline_lines
from amp_doctor.report.profile_verdict import LEVELS, reservations, verdict
from amp_doctor.report.summary import by_severity
from amp_doctor.report.text import clean, counted, place, source_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amp_doctor.finding import Finding
    from amp_doctor.report.joined import Joined
    from amp_doctor.report.sheet import Sheet
    from amp_doctor.report.text import Line

# Of the layers that a lint finding stands beside, so many are named; of one code so many findings are told in full.
NAMED = 6
MARKS = " (x NaN, ^ inf)"
IN_FULL = 12


@dataclass(frozen=True, slots=True)
class Told:
    """What the page tells of: the run, and what the linter found. `sources` are texts of files by path."""

    sheet: Sheet
    lint: Sequence[Joined]
    sources: Mapping[str, str]


def parts(told: Told) -> str:
    """The body of the page, scripts left out."""
    sections = [
        ("verdict", "Verdict", _verdict(told.sheet)),
        ("proof", "Proof", _proof(told.sheet)),
        ("findings", "Findings", _findings(told)),
        ("layers", "Layers", FRAMES["layers"] if told.sheet.profile.layers else _none("No module of torch.nn ran.")),
        ("scale", "Loss scale", FRAMES["scale"] if _has_gradients(told.sheet) else _none("No gradient was seen.")),
        ("timeline", "Timeline", _timeline(told.sheet)),
        ("operators", "Operators", _operators(told.sheet)),
        ("replay", "Replay", _replay(told.sheet)),
        ("source", "Source", _lint(told)),
        ("measured", "How it was measured", _measured(told.sheet)),
    ]
    shown = [(name, title, inner) for name, title, inner in sections if inner]
    links = "".join(tag("a", words(title), href=f"#{name}") for name, title, _ in shown)
    script = told.sheet.profile.script or "a run"
    return (
        tag("a", "Skip to the verdict", href="#verdict", class_="skip")
        + tag("header", f"{tag('p', 'AMP Doctor', class_='brand')}{tag('h1', words(script))}{picker()}")
        + tag("nav", links, aria_label="Sections")
        + tag("main", "".join(_section(*one) for one in shown))
        + tag("footer", words(f"amp-doctor {__version__}"))
    )


def _section(name: str, title: str, inner: str) -> str:
    return tag(
        "section", f"{tag('h2', words(title), id=f'{name}-title')}{inner}", id=name, aria_labelledby=f"{name}-title"
    )


def _none(text: str) -> str:
    return tag("p", words(text), class_="quiet")


def _verdict(sheet: Sheet) -> str:
    advice = sheet.recommendation
    told = rows(verdict(sheet))[1:]
    level = words(f"opt level {advice.opt_level}: {LEVELS.get(advice.opt_level, '')}".rstrip(": "))
    scaled = " and a GradScaler" if advice.dtype == "float16" else ""
    before = "".join(tag("p", words(text), class_=f"banner {style}") for _, text, style in rows(reservations(sheet)))
    snippet = ""
    if advice.snippet.strip():
        code = tag("pre", tag("code", words_of_code(advice.snippet)), tabindex="0", aria_label="Code to paste")
        snippet = f"{tag('h3', 'To paste')}{code}"
    grounds = "".join(
        tag("div", tag("h3", words(title)) + bulleted(inner), class_="column")
        for title, inner in split(grounds_lines(sheet))
    )
    costs = "".join(tag("h3", words(title)) + listed(inner) for title, inner in split(cost_lines(sheet, full=True)))
    return (
        f"{before}{tag('p', tag('strong', words(advice.dtype)) + tag('span', level + scaled), class_='headline')}"
        f"{listed(told)}{snippet}{costs}{tag('div', grounds, class_='columns') if grounds else ''}"
    )


def words_of_code(text: str) -> str:
    """Code, line by line, so that line ends stay and all other control characters go."""
    return "\n".join(words(line) for line in text.rstrip().split("\n"))


def split(lines: list[Line]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Sections of the text report -> their titles and rows."""
    out: list[tuple[str, list[Line]]] = []
    for line in lines:
        if len(line) == 1 and line[0][1] == "name" and not line[0][0].startswith(" "):
            out.append((line[0][0], []))
        elif out:
            out[-1][1].append(line)
    return [(title, rows(inner)) for title, inner in out]


def _proof(sheet: Sheet) -> str:
    proof = sheet.recommendation.verified
    if proof is None:
        return ""
    table = tabled("proof-table", "Runs side by side", ("run", *HEADS), rows_of(proof))
    drawn = FRAMES["proof"] if any(run.loss for run in proof.runs) else ""
    style = STYLES.get(proof.verdict, "warning")
    told = tag("p", words(said(proof)), class_=style) + tag("p", words(clean(proof.reason)))
    return told + drawn + (table if proof.runs else "")


def tabled(name: str, label: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table whose first column is words and whose others are numbers; it scrolls in a frame of its own."""

    def row(of: Sequence[str], cell: str, scope: str | None = None) -> str:
        numbers = (tag(cell, words(clean(text)), class_="number", scope=scope) for text in of[1:])
        return tag("tr", tag(cell, words(clean(of[0])), scope=scope) + "".join(numbers))

    body = tag("tbody", "".join(row(one, "td") for one in cells))
    table = tag("table", tag("thead", row(heads, "th", "col")) + body, id=name)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _replay(sheet: Sheet) -> str:
    replay = sheet.profile.replay
    if replay is None or not (replay.recorded or replay.reason):
        return ""
    if not replay.recorded:
        return _none(unrecorded(replay))
    table = tabled("replay-table", "Precisions side by side", (PRECISION, *REPLAYED), replayed(replay))
    gain = speed_up(sheet.profile, full=True)
    told = [*facts(replay), *([("speed-up", gain, "")] if gain else [])]
    return _none(INTRODUCTION) + (table if replay.outcomes else "") + listed(told)


def _findings(told: Told) -> str:
    found = told.sheet.findings
    [(_, ending, style)] = rows(closing(told.sheet))
    full: list[str] = []
    brief: dict[str, list[str]] = {}
    met: Counter[str] = Counter()
    for index, one in enumerate(found):
        met[one.code] += 1
        anchor = f"finding-{index}"
        if met[one.code] <= IN_FULL:
            full.append(finding_item(one, anchor, _layer(one), source_line(told.sources, one.path, _line(one))))
        else:
            name = tag("button", words(one.layer or place(one)), type="button", class_="layer", data_layer=one.layer)
            brief.setdefault(f"{one.code} {one.name}", []).append(tag("li", name, id=anchor))
    more = ""
    for title, items in brief.items():
        summary = tag("summary", words(f"{title} in {counted(len(items), 'more layer')}"))
        more += tag("details", summary + tag("ul", "".join(items)))
    shown = tag("ol", "".join(full), class_="findings") if full else ""
    return tag("p", words(ending), class_=style or None) + shown + more


def _line(finding: Finding) -> int:
    """0 where the finding has no line."""
    return finding.span.line if finding.span is not NOWHERE else 0


def _layer(finding: Finding) -> str:
    if not finding.layer:
        return ""
    button = tag("button", words(finding.layer), type="button", class_="layer", data_layer=finding.layer)
    return tag("p", f"Layer {button}", class_="about")


def _timeline(sheet: Sheet) -> str:
    # What is drawn there by letters is drawn here by marks.
    lines = [row for _, inner in split(timeline_lines(sheet)) for row in inner]
    told = [(label, text.replace(MARKS, "").replace(" (x)", ""), style) for label, text, style in lines]
    drawn = FRAMES["timeline"] if sheet.profile.loss or sheet.profile.scaler else ""
    return drawn + listed(told) if told else ""


def _operators(sheet: Sheet) -> str:
    return FRAMES["operators"] if trusted(sheet.profile).operators else ""


def _lint(told: Told) -> str:
    if not told.lint:
        return ""
    items = []
    for index, one in enumerate(told.lint):
        about, agreed, layers = "", one.agreed, one.layers
        if agreed:
            badge = tag("span", words(f"{agreed.verdict} by the run"), class_=f"badge {agreed.verdict.split()[0]}")
            codes = f" ({', '.join(agreed.codes)})" if agreed.codes else ""
            about += tag("p", f"{badge} {words(agreed.words + codes)}", class_="about")
        if layers:
            names = " ".join(
                tag("button", words(name), type="button", class_="layer", data_layer=name) for name in layers[:NAMED]
            )
            beyond = words(f" and {len(layers) - NAMED} more") if len(layers) > NAMED else ""
            about += tag("p", f"Beside {names}{beyond}", class_="about")
        items.append(finding_item(one.finding, f"lint-{index}", about, one.line))
    severities = by_severity([one.finding for one in told.lint])
    count = f"{counted(len(told.lint), 'finding')} in the source ({severities})."
    return tag("p", words(f"The linter has {count}")) + tag("ol", "".join(items), class_="findings")


def _measured(sheet: Sheet) -> str:
    out = [listed(inner) for _, inner in split(measured_lines(sheet, full=True))]
    out += [tag("h3", words(clean(title))) + bulleted(inner) for title, inner in split(notes_lines(sheet))]
    return "".join(out)


def _has_gradients(sheet: Sheet) -> bool:
    sites = (one.sites[role] for one in sheet.profile.layers for role in GRADIENTS if role in one.sites)
    return any(site.histogram.nonzero for site in sites)
