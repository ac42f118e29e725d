"""Profile <-> JSON values, schema 1 (DESIGN section 6)."""

from __future__ import annotations

from dataclasses import asdict
from math import inf, isfinite, isinf, isnan
from typing import TYPE_CHECKING, Any

from amp_doctor import __version__
from amp_doctor.diagnosis.foretold import lost
from amp_doctor.diagnosis.profile import (
    LOSS_SCALES,
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
from amp_doctor.errors import ProfileError
from amp_doctor.numerics.formats import BF16, FP16
from amp_doctor.numerics.histogram import ExponentHistogram

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = 1
# The loss scales whose outcome is written out, for readers without our arithmetic.
SCALES = {"float16": (FP16, LOSS_SCALES), "bfloat16": (BF16, (1,))}


def to_values(profile: Profile) -> dict[str, Any]:
    """The profile as JSON values; NaN and infinities, which JSON lacks, as strings."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "amp-doctor", "version": __version__},
        "torch": profile.torch,
        "device": asdict(profile.device),
        "command": list(profile.command),
        "script": profile.script,
        "mode": profile.mode,
        "steps": asdict(profile.steps),
        "optimizers": [_optimizer(log) for log in profile.optimizers],
        "ended": profile.ended,
        "ranks": profile.ranks,
        "seconds": profile.seconds,
        "loss": [_number(value) for value in profile.loss],
        "scaler": [{**asdict(event), "scale": _number(event.scale)} for event in profile.scaler],
        "layers": [_layer(layer) for layer in profile.layers],
        "operators": [{**asdict(one), "amax": _number(one.amax)} for one in profile.operators],
        "first_nonfinite": asdict(profile.first_nonfinite) if profile.first_nonfinite else None,
        "precision": asdict(profile.precision),
        "memory": asdict(profile.memory),
        "notes": list(profile.notes),
        **({"replay": _replay_values(profile.replay)} if profile.replay is not None else {}),
        **({"places": {name: asdict(source) for name, source in profile.places.items()}} if profile.places else {}),
    }


def from_values(values: object, name: str) -> Profile:
    """The profile that JSON values stand for, `{"profile": ...}` around it or not; `name` is for a ProfileError."""
    if isinstance(values, dict) and isinstance(values.get("profile"), dict):
        values = values["profile"]
    if not isinstance(values, dict) or "layers" not in values or "schema" not in values:
        raise ProfileError(f"{name}: not a profile of amp-doctor (expected an object with `schema` and `layers`)")
    if not isinstance(values["schema"], int) or values["schema"] > SCHEMA:
        raise ProfileError(
            f"{name}: schema {values['schema']!r} is newer than amp-doctor {__version__}, which reads up to {SCHEMA}"
        )
    try:
        return _profile(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileError(f"{name}: a broken profile: {type(error).__name__}: {error}") from error


def _profile(values: dict[str, Any]) -> Profile:
    capability = values["device"]["capability"]
    first = values["first_nonfinite"]
    return Profile(
        torch=values["torch"],
        device=Device(**{**values["device"], "capability": tuple(capability) if capability else None}),
        command=tuple(values["command"]),
        script=values["script"],
        mode=values["mode"],
        steps=Steps(**values["steps"]),
        optimizers=tuple(_read_optimizer(log) for log in values["optimizers"]),
        ended=values["ended"],
        ranks=values["ranks"],
        seconds=values["seconds"],
        loss=tuple(float(value) for value in values["loss"]),
        scaler=tuple(ScalerEvent(**{**event, "scale": float(event["scale"])}) for event in values["scaler"]),
        layers=tuple(_read_layer(layer) for layer in values["layers"]),
        operators=tuple(
            Operator(**{**one, "source": _source(one["source"]), "amax": float(one["amax"])})
            for one in values["operators"]
        ),
        first_nonfinite=FirstNonfinite(**{**first, "source": _source(first["source"])}) if first else None,
        precision=Precision(**_tuples(values["precision"])),
        memory=Memory(**values["memory"]),
        notes=tuple(values["notes"]),
        replay=_replay(values.get("replay")),
        places={name: Source(**source) for name, source in values.get("places", {}).items()},
    )


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "type": layer.type,
        "source": asdict(layer.source) if layer.source else None,
        "order": layer.order,
        "sites": {role: site_values(site) for role, site in layer.sites.items()},
        "observed": {role: site_values(site) for role, site in layer.observed.items()},
        "buffers": dict(layer.buffers),
    }


def _read_layer(values: dict[str, Any]) -> Layer:
    return Layer(
        values["name"],
        values["type"],
        _source(values["source"]),
        values["order"],
        {role: read_site(site) for role, site in values["sites"].items()},
        {role: read_site(site) for role, site in values["observed"].items()},
        values["buffers"],
    )


def site_values(site: Site) -> dict[str, Any]:
    """A site with its shares written out; shares are of the non-zero elements."""
    counts = site.histogram
    return {
        "dtype": site.dtype,
        "elements": counts.elements,
        "zeros": counts.zeros,
        "nan": counts.nan,
        "inf": counts.inf,
        "negative_inf": counts.negative_inf,
        "amax": counts.amax,
        "amin": counts.amin if isfinite(counts.amin) else None,
        "high": counts.high if isfinite(counts.high) else None,
        "low": counts.low if isfinite(counts.low) else None,
        "sampled": site.sampled,
        "exponents": {str(exponent): counts.exponents[exponent] for exponent in sorted(counts.exponents)},
        "swallowed": dict(site.swallowed),
        **({"as_at": {str(scale): _number(other) for scale, other in site.as_at.items()}} if site.as_at else {}),
        "lost": {
            name: {str(scale): lost(site, to, scale) for scale in scales} for name, (to, scales) in SCALES.items()
        },
        "overflow": {
            name: {str(scale): counts.overflowing(to, scale) for scale in scales}
            for name, (to, scales) in SCALES.items()
        },
    }


def read_site(values: dict[str, Any]) -> Site:
    """The site that was written; its shares are derived anew."""
    exponents = {int(exponent): count for exponent, count in values["exponents"].items()}
    amin, high, low = values["amin"], values["high"], values["low"]
    histogram = ExponentHistogram(
        exponents,
        values["zeros"],
        values["nan"],
        values["inf"] - values["negative_inf"],
        values["negative_inf"],
        values["amax"],
        inf if amin is None else amin,
        -inf if high is None else high,
        inf if low is None else low,
    )
    if histogram.elements != values["elements"]:
        raise ValueError(f"a site counts {values['elements']} elements, its parts {histogram.elements}")
    as_at = {float(scale): float(other) for scale, other in values.get("as_at", {}).items()}
    return Site(values["dtype"], histogram, values["sampled"], values["swallowed"], as_at)


def _optimizer(log: OptimizerLog) -> dict[str, Any]:
    return {**asdict(log), "second_moment": site_values(log.second_moment) if log.second_moment else None}


def _read_optimizer(values: dict[str, Any]) -> OptimizerLog:
    second = values["second_moment"]
    return OptimizerLog(**{**_tuples(values), "second_moment": read_site(second) if second else None})


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _source(values: dict[str, Any] | None) -> Source | None:
    return Source(**values) if values else None


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity; `float()` reads these words back."""
    return "nan" if isnan(value) else ("inf" if value > 0 else "-inf") if isinf(value) else value


def _replay_values(replay: Replay) -> dict[str, Any]:
    return {
        **asdict(replay),
        **_errors(replay),
        "outcomes": [{**asdict(one), **_errors(one)} for one in replay.outcomes],
    }


def _errors(of: Replay | Outcome) -> dict[str, Any]:
    return {"loss_error": _number(of.loss_error), "gradient_error": _maybe(of.gradient_error, _number)}


def _replay(values: dict[str, Any] | None) -> Replay | None:
    if values is None:
        return None
    return Replay(
        **{
            **values,
            **_read_errors(values),
            "speed": {gpu: (float(low), float(high)) for gpu, (low, high) in values["speed"].items()},
            "keep": tuple(values["keep"]),
            "outcomes": tuple(Outcome(**{**one, **_read_errors(one)}) for one in values.get("outcomes", ())),
            "lines": tuple(Source(**one) for one in values.get("lines", ())),
        }
    )


def _read_errors(values: dict[str, Any]) -> dict[str, Any]:
    return {"loss_error": float(values["loss_error"]), "gradient_error": _maybe(values["gradient_error"], float)}


def _maybe(value: Any, change: Callable[[Any], Any]) -> Any:
    return None if value is None else change(value)
