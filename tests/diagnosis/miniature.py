"""A profile written by hand: the TOML of the AMP6 pages -> Profile; rules/README.md describes the form."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from math import inf
from typing import Any

from amp_doctor.diagnosis.profile import (
    Device,
    FirstNonfinite,
    Layer,
    Memory,
    Operator,
    OptimizerLog,
    Outcome,
    Precision,
    Profile,
    Replay,
    ScalerEvent,
    Site,
    Source,
    Steps,
)
from amp_doctor.numerics.histogram import ExponentHistogram

TABLES = {
    "mode", "script", "loss", "steps", "device", "precision", "memory", "site", "layer", "scaler", "optimizer",
    "operator", "first_nonfinite", "ended", "notes", "replay",
}  # fmt: skip


def miniature(text: str) -> Profile:
    """The profile that a block describes; every key that is not known is an error."""
    values = tomllib.loads(text)
    assert values.keys() <= TABLES, f"unknown: {sorted(values.keys() - TABLES)}"
    steps = values.get("steps", 20)
    scaler = _scaler(values.get("scaler", []))
    skipped = sum(event.found_inf for event in scaler)
    precision = values.get("precision", {})
    return Profile(
        torch="2.13.0",
        device=_device(values.get("device", {})),
        script=values.get("script", "train.py"),
        mode=values.get("mode", "calibrate"),
        steps=Steps(steps, steps, max(0, steps - skipped), skipped),
        optimizers=tuple(_optimizer(dict(one)) for one in values.get("optimizer", [])),
        ended=values.get("ended", "steps"),
        ranks=1,
        loss=tuple(map(float, values.get("loss", ()))),
        scaler=scaler,
        layers=_layers(values.get("site", []), values.get("layer", [])),
        operators=tuple(Operator(**_placed(one)) for one in values.get("operator", [])),
        first_nonfinite=FirstNonfinite(**_placed(values["first_nonfinite"])) if "first_nonfinite" in values else None,
        precision=Precision(
            tuple(precision.get("autocast", ())),
            precision.get("scaler", bool(scaler)),
            tuple(precision.get("weights", ("float32",))),
            precision.get("calibrated", False),
        ),
        memory=Memory(**values.get("memory", {})),
        notes=tuple(values.get("notes", ())),
        replay=_replay(values["replay"]) if "replay" in values else None,
    )


def counts(values: dict[str, Any]) -> ExponentHistogram:
    """`exponents`, `zeros`, `nan`, `inf`, `negative_inf`; extremes are derived from the exponents unless given."""
    exponents = {int(exponent): number for exponent, number in values.pop("exponents", {}).items()}
    amax = float(values.pop("amax", 1.5 * 2.0 ** max(exponents) if exponents else 0.0))
    amin = float(values.pop("amin", 2.0 ** min(exponents) if exponents else inf))
    zeros = values.pop("zeros", 0)
    return ExponentHistogram(
        exponents,
        zeros,
        values.pop("nan", 0),
        values.pop("inf", 0),
        values.pop("negative_inf", 0),
        amax,
        amin,
        float(values.pop("high", amax if exponents or zeros else -inf)),
        float(values.pop("low", -amax if exponents or zeros else inf)),
    )


def _layers(sites: list[dict[str, Any]], tables: list[dict[str, Any]]) -> tuple[Layer, ...]:
    """Layers run in the order in which they are first named."""
    found: dict[str, Layer] = {}
    for table in tables:
        found[table["layer"]] = Layer(
            table["layer"], table.get("type", ""), None, len(found), buffers=table.get("buffers", {})
        )
    for table in sites:
        values = dict(table)
        name, role, kind = values.pop("layer"), values.pop("role"), values.pop("type", "")
        observed, line = values.pop("observed", False), values.pop("line", None)
        layer = found.get(name, Layer(name, kind, Source("model.py", line) if line else None, len(found)))
        site = Site(
            values.pop("dtype", "float32"),
            counts(values),
            values.pop("sampled", False),
            values.pop("swallowed", {}),
        )
        assert not values, f"{name}: unknown: {sorted(values)}"
        if observed:
            found[name] = replace(layer, observed={**layer.observed, role: site})
        else:
            found[name] = replace(layer, sites={**layer.sites, role: site})
    return tuple(found.values())


def _scaler(tables: list[dict[str, Any]]) -> tuple[ScalerEvent, ...]:
    """One event per step; `times` repeats one, halving the scale after each infinity, as GradScaler does."""
    found: list[ScalerEvent] = []
    for table in tables:
        scale, skips = float(table["scale"]), table.get("found_inf", False)
        for _ in range(table.get("times", 1)):
            found.append(ScalerEvent(len(found) + 1, scale, skips, table.get("layer")))
            scale *= 0.5 if skips else 1.0
    return tuple(found)


def _device(values: dict[str, Any]) -> Device:
    capability = values.get("capability")
    return Device(**{"kind": "cpu", **values, "capability": tuple(capability) if capability else None})


def _optimizer(values: dict[str, Any]) -> OptimizerLog:
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return OptimizerLog(**{"name": "Adam", **values, **lists})


def _replay(values: dict[str, Any]) -> Replay:
    outcomes = tuple(Outcome(**one) for one in values.get("outcomes", ()))
    return Replay(**{**values, "keep": tuple(values.get("keep", ())), "outcomes": outcomes})


def _placed(values: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in values.items() if key != "line"}
    return {**rest, "source": Source("model.py", values["line"])} if "line" in values else rest
