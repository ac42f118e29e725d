"""HTML pages of made-up runs, what a parser sees in one, and names that would like to be markup."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.profile import Layer, Operator, Source
from amp_doctor.diagnosis.recommendation import Run, Verified
from amp_doctor.finding import Finding, Related, Severity, Span
from amp_doctor.report.to_html import to_html
from tests.report.samples import ADVICE, FINDINGS, SICK, site

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "--><img src=x onerror=\"document.title='owned'\">",
    "'\"><b onmouseover=document.title='owned'>",
    "<a href=\"javascript:document.title='owned'\">%{x} {{x}} ${x}</a>",
    "&lt;script&gt; &#60; &amp; \u2028\u2029\u202e\x00\x1b[31m",
    "\udcff lone",
    "größe 数 🔥 " + "long." * 60,
)
MODEL = """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        self.rnn = torch.nn.LSTM(8, 8)
        self.wo = torch.nn.Linear(8, 8).float()
"""
LINT = (
    Finding(
        "AMP502", "eps-below-half", Severity.WARNING, "eps 1e-08 is zero in float16", "model.py", Span(41, 9, 41, 30)
    ),
    Finding(
        "AMP201",
        "clip-before-unscale",
        Severity.ERROR,
        "gradients are clipped while still multiplied by the loss scale",
        "model.py",
        Span(6, 5, 6, 60),
        related=(Related("model.py", Span(23, 1, 23, 9), "they come from here"),),
    ),
    Finding(
        "AMP401",
        "half-batchnorm",
        Severity.WARNING,
        "silenced by a comment",
        "model.py",
        Span(2, 1, 2, 5),
        suppressed=True,
    ),
)
SOURCES = {"model.py": MODEL}
PROOF = Verified(
    "verified",
    4,
    (
        Run("float32", (2.0, 1.0, 0.5, 0.25), 0, None, 3.0, 4),
        Run("as written", (2.0, 1.5, float("nan")), 1, 0.25, 2.0, 4),
        Run("float16, init_scale 8192", (2.0, 1.0, 0.5, 0.26), 0, 0.001, 2.0, 4),
    ),
    "the loss follows float32",
)


def page(profile: Profile = SICK, **more: Any) -> str:
    """The page of a run that has something of everything."""
    return to_html(profile, more.pop("findings", FINDINGS), ADVICE, **{"lint": LINT, "sources": SOURCES, **more})


def named(name: str) -> str:
    """The page of the same run where `name` stands wherever a user's words do."""
    source = Source(name, 3)
    layers = tuple(
        replace(one, name=f"{name}{index}", type=name, source=source) for index, one in enumerate(SICK.layers)
    )
    operators = tuple(replace(one, operator=name, layer=name, source=source) for one in SICK.operators)
    first = SICK.first_nonfinite and replace(SICK.first_nonfinite, layer=name, source=source, operator=name)
    profile = replace(
        SICK,
        layers=layers,
        operators=operators,
        first_nonfinite=first,
        script=name,
        command=(name,),
        notes=(name,),
        torch=name,
        device=replace(SICK.device, name=name),
        scaler=tuple(replace(event, layer=event.layer and name) for event in SICK.scaler),
    )
    found = [replace(one, message=name, path=name, layer=f"{name}0") for one in FINDINGS]
    lint = [replace(one, message=name, path=name, span=Span(3, 1, 3, 2), related=()) for one in LINT]
    proof = replace(PROOF, reason=name, runs=tuple(replace(one, settings=name) for one in PROOF.runs))
    advice = replace(ADVICE, verified=proof)
    return to_html(profile, found, advice, lint=lint, sources={name: f"\n\n{name}\n"})


def tame() -> str:
    """What `named` makes of a name that is nothing but a name."""
    return named("name")


def big(layers: int = 2000) -> Profile:
    """A model of many layers, each with every kind of counts."""
    kinds = {"activation": 0, "activation_grad": -20, "weight": -4, "weight_grad": -12, "update": -14}
    sites = [
        {role: site(center + shift, elements=10_000_000, zeros=1234) for role, center in kinds.items()}
        for shift in range(-4, 5)
    ]
    return replace(
        SICK,
        layers=tuple(
            Layer(
                f"model.layers.{number // 7}.self_attention.projection_{number % 7}",
                "LlamaNormalizedLinear",
                Source("package/modeling_of_some_length.py", number + 1),
                number,
                sites[number % len(sites)],
                {"weight_grad": sites[number % len(sites)]["weight_grad"]},
            )
            for number in range(layers)
        ),
        operators=tuple(
            Operator(
                "softmax",
                f"model.layers.{number}",
                Source("model.py", number + 1),
                "O1/float16",
                "overflow",
                "float16",
                1e5,
            )
            for number in range(100)
        ),
    )


class Seen(HTMLParser):
    """The tags of a page with the names of their attributes, its links, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self._inside = ""
        self.comments = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {key: value or "" for key, value in attrs}
        self.tags.append((tag, tuple(sorted(told))))
        self.links += [told[key] for key in ("href", "src", "action", "data", "poster", "srcset") if key in told]
        self.ids += [told["id"]] if "id" in told else []
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"]
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:  # noqa: ARG002
        self.comments += 1

    @property
    def values(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])
