"""AMP106 to AMP114 and AMP124: what scalers and autocast contexts are built with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability
from amp_doctor.lint.apis import AUTOCASTS
from amp_doctor.lint.checks import mentions
from amp_doctor.lint.checks.flags import flag_value
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Construct, Enter, Scale, Update
from amp_doctor.lint.objects import HALF, NONE, Literal, Object, Symbol, Test, Value, dtype_of
from amp_doctor.lint.trace import Attr, Const, Item, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.finding import Edit

_NEW_ORDER = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_SHARDED_ORDER = ("device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled")


def _given(event: Construct, order: tuple[str, ...], name: str) -> Value | None:
    """The argument for a parameter, by keyword or by its place."""
    plain = [value for key, value in event.args if key is None]
    named = dict(event.args)
    place = order.index(name)
    return named.get(name) or (plain[place] if place < len(plain) else None)


def _order(scaler: Object) -> tuple[str, ...]:
    if scaler.api.endswith("ShardedGradScaler"):
        return _SHARDED_ORDER
    return _NEW_ORDER[1:] if re.match(r"torch\.(cuda|cpu)\.", scaler.api) else _NEW_ORDER


@check("AMP106", on=Construct)
def bad_constants(at: Moment[Construct]) -> Iterator[Draft]:
    scaler = at.event.object
    if scaler.role != "scaler" or at.enabled(scaler) is False:
        return
    for name, side in (("growth_factor", "greater"), ("backoff_factor", "less")):
        value = _given(at.event, _order(scaler), name)
        if isinstance(value, Literal) and isinstance(value.value, int | float) and value.value is not True:
            number = value.value
            if number <= 1 if side == "greater" else number >= 1:
                words = f"{name} must be {side} than 1, it is {number}"
                yield at.finding(f"{words}: the constructor raises AssertionError")


@check("AMP107", on=Construct)
def positional_argument(at: Moment[Construct]) -> Iterator[Draft]:
    scaler = at.event.object
    first = at.event.args[0] if at.event.args else None
    if scaler.role != "scaler" or first is None or first[0] is not None or "Sharded" in scaler.api:
        return
    slot = _order(scaler)[0]
    number = _is_scale(first[1])
    if slot == "init_scale" and _is_device(first[1]):
        yield at.finding("a device in the init_scale slot: only torch.amp.GradScaler takes one")
        return
    if flag_value(first[1]):
        meant, words = "enabled", f"a flag in the {slot} slot: it switches nothing off; write enabled=..."
    elif number and slot == "device":
        meant, words = "init_scale", "a number in the device slot: the scale stays at 65536; write init_scale=..."
    else:
        return
    reference = mentions.reference_of(at, at.event.at)
    fix = None
    keys = [key for key, _ in reference.args] if reference is not None else []
    if reference is not None and meant not in keys and keys.count(None) == 1:
        edit = mentions.put_keyword(at, reference, 0, meant)
        fix = at.fix(f"name the parameter that is meant, {meant}", Applicability.UNSAFE, edit)
    yield at.finding(words, fix=fix)


def _is_scale(value: Value) -> bool:
    """A number, what is called a scale, or a parameter whose default is a number."""
    if isinstance(value, Symbol):
        named = re.search(r"(^|[._])(init|initial|loss)_(loss_)?scale(~\d+)?$", value.key)
        index = re.search(r"device|gpu|rank", value.name) is not None
        return named is not None or (value.key.endswith("#number") and not index)
    return isinstance(value, Literal) and type(value.value) in (int, float)


def _is_device(value: Value) -> bool:
    """A device type, or a device."""
    if isinstance(value, Literal):
        return isinstance(value.value, str)
    words = r"(^|[._~])device(_type)?(~\d+)?$|device\(.*\)\.type$|\bdevice\.type$"
    named = isinstance(value, Symbol) and re.search(words, value.key) is not None
    return named or (isinstance(value, Object) and value.role == "device")


@check("AMP108", on=Update)
def update_with_int(at: Moment[Update]) -> Iterator[Draft]:
    new = at.event.new_scale
    if isinstance(new, Literal) and type(new.value) is int:
        fix = None
        if new.at and _within(at, new.at, at.event.at):
            text = at.text(new.at)
            number = f"{text}.0" if re.fullmatch(r"[\d_]+", text) else f"float({text})"
            fix = at.fix("write the scale as a float", Applicability.SAFE, at.replace(new.at, number))
        yield at.finding("the new scale is an int: update() takes a float and raises AttributeError", fix=fix)


def _within(at: Moment[Any], inner: int, outer: int) -> bool:
    """Both nodes are of the linted file, one inside the other."""
    if at.home(inner) is not at.module or at.home(outer) is not at.module:
        return False
    (start, end), (first, last) = at.module.places.bytes_of(inner), at.module.places.bytes_of(outer)
    return bool(first <= start and end <= last)


@check("AMP109", on=Finished)
def device_mismatch(at: Moment[Finished]) -> Iterator[Draft]:
    """No region of the file is for the device of a scaler that scales."""
    log = at.event.log
    entered = [event.region for event in log if isinstance(event, Enter)]
    regions = [region for region in entered if at.decide(region.enabled) is not False]
    devices = {region.device for region in regions}
    if not devices or None in devices:
        return
    scalers = {event.scaler for event in log if isinstance(event, Scale) and event.scaler.origin == "constructed"}
    own = {scaler.at: {_device(other) for other in scalers if other.at == scaler.at} for scaler in scalers}
    for scaler in sorted(scalers, key=lambda one: one.at):
        device = _device(scaler)
        if device is not None and not own[scaler.at] & {None, *devices} and at.enabled(scaler) is not False:
            others = " and ".join(sorted(str(other) for other in devices))
            yield at.finding(
                f"the scaler is for {device}, the autocast region for {others}",
                at=scaler.at,
                trail=[(regions[0].at, "the region is entered here")],
            )


def _device(scaler: Object) -> str | None:
    """The device type that a scaler is written for; None when it is chosen at run time."""
    named = re.match(r"torch\.(cuda|cpu|xpu)\.", scaler.api)
    if named is not None:
        return named[1]
    device = scaler.fact("device")
    if isinstance(device, Literal) and device.value is None:
        return "cuda"
    return device.value.split(":")[0] if isinstance(device, Literal) and isinstance(device.value, str) else None


def _new_autocast(event: Construct) -> bool:
    """The class whose first parameter is the device type."""
    return event.object.role == "autocast" and AUTOCASTS[event.object.api][0] is None


@check("AMP110", on=Construct)
def device_object(at: Moment[Construct]) -> Iterator[Draft]:
    kind = at.event.object.fact("kind")
    if not _new_autocast(at.event) or not isinstance(kind, Object) or kind.role != "device":
        return
    reference = mentions.reference_of(at, at.event.at)
    given = mentions.argument(reference, 0, "device_type") if reference is not None else None
    fix = None
    if given is not None:
        _, node, term = given
        text = at.text(node)
        keyword = re.match(r"device_type\s*=\s*", text)
        head, value = (text[: keyword.end()], text[keyword.end() :]) if keyword else ("", text)
        simple = isinstance(term, Name | Attr | Item)
        new = f"{head}{value}.type" if simple else f"{head}({value}).type"
        fix = at.fix("pass the device's type", Applicability.SAFE, at.replace(node, new))
    yield at.finding("torch.device where a string is wanted: autocast raises ValueError; pass its .type", fix=fix)


@check("AMP111", on=Construct)
def without_device(at: Moment[Construct]) -> Iterator[Draft]:
    context = at.event.object
    if not _new_autocast(at.event) or any(key in ("*", "**") for key, _ in at.event.args):
        return
    kind = context.fact("kind")
    missing = isinstance(kind, Literal) and kind.value is None
    flag = flag_value(kind) and dict(at.event.args).get("device_type") is None
    reference = mentions.reference_of(at, at.event.at)
    if missing and any(key == "device" for key, _ in at.event.args):
        yield at.finding("autocast has no parameter device: write device_type")
        return
    if not (missing or flag) or (reference is not None and mentions.open_ended(reference)):
        return
    edits: tuple[Edit, ...] | None = None
    if reference is not None:
        edits = mentions.with_device(at, reference, "cuda", ("enabled", "dtype", "cache_enabled"))
    fix = at.fix('add the device type "cuda"', Applicability.UNSAFE, *edits) if edits else None
    words = ": a flag stands in its place" if flag else ", its first parameter"
    yield at.finding(f"autocast without a device type{words}", fix=fix)


@check("AMP112", on=Construct)
def indexed_device(at: Moment[Construct]) -> Iterator[Draft]:
    kind = at.event.object.fact("kind")
    if not _new_autocast(at.event) or not isinstance(kind, Literal) or not isinstance(kind.value, str):
        return
    device = re.fullmatch(r"([a-z]+):\d+", kind.value)
    if device is not None:
        fix = None
        if kind.at and _within(at, kind.at, at.event.at):
            plain = at.text(kind.at).replace(kind.value, device[1])
            fix = at.fix("leave out the index", Applicability.SAFE, at.replace(kind.at, plain))
        yield at.finding(f"device type with an index: autocast is for every {device[1]} device", fix=fix)


@check("AMP113", on=Construct)
def flag_as_dtype(at: Moment[Construct]) -> Iterator[Draft]:
    plain = [value for key, value in at.event.args if key is None]
    if not _new_autocast(at.event) or len(plain) < 2 or not flag_value(plain[1]):
        return
    reference = mentions.reference_of(at, at.event.at)
    fix = None
    keys = [key for key, _ in reference.args] if reference is not None else []
    if reference is not None and keys[:2] == [None, None] and keys.count(None) == 2 and "enabled" not in keys:
        edit = mentions.put_keyword(at, reference, 1, "enabled")
        safe = isinstance(reference.args[1][1], Const)
        fix = at.fix("name the flag", Applicability.SAFE if safe else Applicability.UNSAFE, edit)
    yield at.finding("a flag in the dtype slot: the order is device_type, dtype, enabled", fix=fix)


@check("AMP114", on=Construct)
def to_float32(at: Moment[Construct]) -> Iterator[Draft]:
    context = at.event.object
    dtype = dtype_of(context.fact("given")) if context.role == "autocast" else None
    if dtype not in ("float32", "float64") or at.decide(context.fact("enabled")) is False:
        return
    order = AUTOCASTS[context.api][1]
    reference = mentions.reference_of(at, at.event.at)
    given = mentions.argument(reference, order.index("dtype"), "dtype") if reference is not None else None
    written = given is not None and re.search(r"\b(float32|float64|float|double)$", at.text(given[1])) is not None
    kind = context.fact("kind") or NONE
    if not written and context.fact("device") != Literal("cpu") and not at.decide(Test("eq", (kind, Literal("cpu")))):
        return  # a dtype that is chosen elsewhere: on CUDA it is a way to switch autocast off
    fix = None
    if written and reference is not None and given is not None and "enabled" not in dict(reference.args):
        keys = [key for key, _ in reference.args]
        if keys[given[0]] is not None or keys.count(None) == given[0] + 1:
            fix = at.fix("switch autocast off", Applicability.UNSAFE, at.replace(given[1], "enabled=False"))
    yield at.finding(f"{dtype} is no autocast dtype, the region lowers nothing: write enabled=False", fix=fix)


@check("AMP124", on=Construct)
def half_on_cpu(at: Moment[Construct]) -> Iterator[Draft]:
    context = at.event.object
    if at.torch_version is None or at.torch_version >= (2, 2) or context.role != "autocast":
        return
    half = context.fact("device") == Literal("cpu") and context.fact("dtype") == Literal(HALF)
    if half and at.decide(context.fact("enabled")) is not False:
        yield at.finding("float16 on the CPU needs torch 2.2: before, the region is switched off with a warning")
