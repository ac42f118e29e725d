"""AMP225, 238, 242: accumulation guards, backward methods and optimizer steps that are wrong by their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.finding import Confidence
from amp_doctor.lint import paths
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Construct, Scale
from amp_doctor.lint.trace import Attr, ClassDef, Const, Display, Exit, Function, Name, Seq, Stmt

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP225", on=Finished)
def partial_accumulation_guard(at: Moment[Finished]) -> Iterator[Draft]:
    if "zero_grad" not in at.module.words:
        return
    for function in (*at.module.functions, Function(0, "<module>", (), at.module.body)):
        sites = list(paths.calls(function.body))
        scalers = {site.receiver for site in sites if site.method in ("scale", "update", "unscale_")}
        steps = [site for site in sites if site.method == "step" and site.receiver in scalers]
        for step in steps:
            for zero in (
                site
                for site in sites
                if site.method == "zero_grad"
                and site.receiver == step.argument()
                and site.loops == step.loops
                and step.loops
            ):
                alone = len([site for site in sites if site.method == "zero_grad"]) == 1 and len(steps) == 1
                if alone and _counts(step.tests) != _counts(zero.tests) and not _nested(step, sites):
                    yield at.finding(
                        "step and zero_grad do not share the accumulation guard: gradients are lost or kept by mistake",
                        at=zero.leaf.at,
                        trail=[(step.leaf.at, "stepped here")],
                    )


def _nested(step: paths.Site, sites: list[paths.Site]) -> bool:
    """The backward runs in a deeper loop of its own: the guard is that loop."""
    return any(site.method == "backward" and len(site.loops) > len(step.loops) for site in sites)


def _counts(tests: tuple[str, ...]) -> bool:
    return any("Modulo" in test and not test.startswith("not ") for test in tests)


@check("AMP238", on=Finished)
def custom_backward_ignores_gradient(at: Moment[Finished]) -> Iterator[Draft]:
    if not any(
        isinstance(event, Scale | Construct) and (isinstance(event, Scale) or event.object.role == "scaler")
        for event in at.event.log
    ):
        return
    for definition in at.module.classes:
        backward = definition.methods.get("backward")
        if backward is None or not _is_function(definition) or len(backward.params) < 2:
            continue
        gradients = [param.name for param in backward.params[1:]]
        if any(paths.loads(backward.body, name) for name in gradients):
            continue
        for leaf in _returns(backward.body):
            if _something(leaf):
                yield at.finding(
                    "the incoming gradient, which carries the loss scale, is not used: this gradient is unscaled",
                    at=leaf.at,
                    confidence=Confidence.MEDIUM,
                )


def _is_function(definition: ClassDef) -> bool:
    return any(isinstance(base, Attr | Name) and paths.written(base).endswith("Function") for base in definition.bases)


def _returns(body: Seq) -> Iterator[Exit]:
    for item in body.items:
        if isinstance(item, Stmt):
            yield from _returns(item.body)
        elif isinstance(item, Exit) and item.kind == "return":
            yield item


def _something(leaf: Exit) -> bool:
    """The return hands back more than None."""
    parts = leaf.value.items if isinstance(leaf.value, Display) else (leaf.value,)
    return any(part is not None and not (isinstance(part, Const) and part.value is None) for part in parts)


@check("AMP242", on=Finished)
def grad_scaler_keyword(at: Moment[Finished]) -> Iterator[Draft]:
    for definition in at.module.classes:
        step = definition.methods.get("step")
        names = {
            paths.written(item.target)
            for statement in definition.body.items
            if isinstance(statement, Stmt)
            for item in statement.body.items
            if hasattr(item, "target")
        }
        if step is None or "_step_supports_amp_scaling" not in names:
            continue
        for param in step.params:
            if param.name == "grad_scaler":
                yield at.finding(
                    "the grad_scaler keyword of step() is deprecated: read grad_scale and found_inf from the optimizer",
                    at=param.at,
                )
