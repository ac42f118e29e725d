"""Profile -> Recommendation: arithmetic on what was counted, and a table of what the machine can do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import Facts, facts
from amp_doctor.diagnosis.failing import failing, refused_at
from amp_doctor.diagnosis.grounds import confidence, reasons, would_change
from amp_doctor.diagnosis.hardware import machine, speed
from amp_doctor.diagnosis.keep import forward, merged, refused
from amp_doctor.diagnosis.memory import memory
from amp_doctor.diagnosis.operators import O1_BFLOAT16, O1_FLOAT16, adds_eps, too_coarse
from amp_doctor.diagnosis.outcomes import changes, coarser, float16_fails, needs_float16, right_with_float32_weights
from amp_doctor.diagnosis.raised import out_of_order
from amp_doctor.diagnosis.recommendation import KeepFP32, Recommendation
from amp_doctor.diagnosis.scale import Verdict, ceiling, few, loss_scale
from amp_doctor.diagnosis.snippet import snippet
from amp_doctor.diagnosis.trust import NOT_EXACT, distrusted
from amp_doctor.diagnosis.underflow import vanishing
from amp_doctor.diagnosis.words import count, line_words, listed

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile


def recommend(profile: Profile) -> Recommendation:
    """What to use. `loss_scale` and `keep_fp32` say what float16 would need, whichever dtype is recommended."""
    known = facts(profile)
    layers = len({one.layer.name for one in known.gradients})
    verdict = loss_scale(known.gradients, layers, ceiling(known.profile))
    keep = merged(forward(known), verdict.exempt)
    # Nothing that was tried brought the replayed step back: then there is nothing to keep in FP32 either.
    lost = float16_fails(known.profile, keep)
    fits = verdict.loss_scale.admissible is not None and few(len(keep), layers) and not lost
    dtype, why = _mended(known, keep, *_dtype(known, fits, keep, verdict))
    shown = merged(keep if fits else (), refused(known))
    found = Recommendation(
        dtype=dtype,
        opt_level="O0" if dtype == "float32" else "O1",
        loss_scale=verdict.loss_scale,
        keep_fp32=shown,
        memory=memory(profile),
        speed=speed(profile),
        confidence=confidence(known, verdict),
        reasons=(why, *_distrust(profile), *reasons(known, verdict, merged(keep, refused(known)))),
        would_change=would_change(known, verdict, dtype, fits=fits),
    )
    return replace(found, snippet=snippet(found, profile))


def _dtype(known: Facts, fits: bool, keep: tuple[KeepFP32, ...], verdict: Verdict) -> tuple[str, str]:
    """The dtype, and the sentence that says why."""
    profile, here = known.profile, machine(known.profile.device)
    if not known.gradients:
        return "float32", "no gradient was counted, so nothing can be said about a reduced precision"
    if known.broken or (_skips_to_the_end(profile) and not known.use.float16):
        return "float32", "infinities or NaN appear without any reduced precision: mend that first"
    if not here.float16:
        return "float32", here.reason
    whole = fits and not vanishing(known)
    healthy = whole and not keep
    coarse = too_coarse(profile) or (healthy and coarser(profile)) or (whole and needs_float16(profile))
    if (here.bfloat16 or not here.known) and coarse:
        return _too_coarse(known, fits, keep)
    if here.known and here.bfloat16:
        if known.use.float16 and healthy and not _skips_to_the_end(profile):
            return "float16", "the script runs in FP16 already, and nothing is lost that a scaler would not save"
        return "bfloat16", f"{here.name} has native BF16, which needs no loss scale"
    if known.use.only_bfloat16 and not here.known:
        return "bfloat16", "the script runs in BF16 already, which needs no loss scale"
    if healthy:
        return "float16", "every gradient that matters fits FP16 at one loss scale, and every output fits as it is"
    if here.known:
        if fits:
            names = listed([one.name for one in keep])
            return "float16", f"FP16 fits with {names} in FP32; BF16 is emulated here" if keep else (
                f"what vanishes in FP16 stands beside far larger gradients, and {here.name} only emulates BF16"
            )
        return "float32", f"FP16 fits at no loss scale or in too few layers, and {here.name} only emulates BF16"
    return "bfloat16", _against_float16(known, fits, keep, verdict)


def _mended(known: Facts, keep: tuple[KeepFP32, ...], dtype: str, why: str) -> tuple[str, str]:
    """What is to be mended first, where the script itself ended badly; and no dtype that it has just failed in.

    An error at a line says nothing about the numbers. Layers and operators for FP32 are what mends the others.
    """
    ended, use, here = failing(known), known.use, machine(known.profile.device)
    if not ended:
        lines = [one.name for one in refused(known)] if dtype != "float32" else []
        lines += _guards(known.profile, keep) if dtype == "float16" else []
        changed = f"{listed(lines)} {'is' if len(lines) == 1 else 'are'} changed"
        return dtype, f"{why}, once {changed}" if lines else why
    if refused_at(known.profile) or out_of_order(known.profile):
        why = "what was counted before it fits FP16" if dtype == "float16" and not keep else why
        return dtype, f"{ended}: mend that first; {why}"
    if right_with_float32_weights(known.profile):
        told = "keep the weights in FP32 and leave the casts to autocast: so the replayed step comes right"
        return ("float16" if known.gradients and here.float16 else dtype), f"{ended}: mend that first; {told}"
    if dtype == "float16" and use.float16 and not keep:
        wide = (here.bfloat16 or not here.known) and not use.bfloat16 and not too_coarse(known.profile)
        dtype = "bfloat16" if wide else "float32"
        why = f"what it comes from was not found, and {'BF16 has the range of FP32' if wide else 'FP32 has none'}"
    elif dtype != "float32" and use.only_bfloat16 and not (too_coarse(known.profile) or coarser(known.profile)):
        dtype, why = "float32", "what it comes from was not found, and FP16 has a smaller range than BF16"
    return dtype, f"{ended}: mend that first; {why}"


def _guards(profile: Profile, keep: tuple[KeepFP32, ...]) -> list[str]:
    """The guards against zero that are zero in half, as AMP619 has them, where they are not in FP32 anyway."""
    layers, lines = {one.layer for one in keep if one.whole}, {one.source for one in keep}
    guards = (one for one in profile.operators if one.precision == O1_FLOAT16 and adds_eps(one))
    left = (one.source for one in guards if one.layer not in layers and one.source not in lines)
    return [f"the eps at {line_words(line)}" for line in dict.fromkeys(left) if line is not None]


def _distrust(profile: Profile) -> tuple[str, ...]:
    return (NOT_EXACT,) if distrusted(profile) else ()


def _too_coarse(known: Facts, fits: bool, keep: tuple[KeepFP32, ...]) -> tuple[str, str]:
    """BF16 has three bits fewer than FP16, and the replayed step misses them."""
    told, used = changes(known.profile, O1_BFLOAT16), ", which the script uses," if known.use.bfloat16 else ""
    off = f"BF16{used} {told or 'is too coarse for the replayed step'}"
    if not fits or vanishing(known):
        return "float32", f"{off}, and FP16 does not fit either"
    if not keep:
        return "float16", f"{off}; FP16 has three bits more, and everything fits it"
    return "float16", f"{off}; FP16 has three bits more, and fits with {listed([one.name for one in keep])} in FP32"


def _against_float16(known: Facts, fits: bool, keep: tuple[KeepFP32, ...], verdict: Verdict) -> str:
    names = listed([one.name for one in keep])
    if float16_fails(known.profile, keep):
        told = changes(known.profile, O1_FLOAT16)
        return f"BF16 has the range of FP32; FP16 {told}, and nothing was found that mends it"
    if fits and not keep:
        names = listed([one.layer.name for one, _ in vanishing(known)])
        return f"BF16 has the range of FP32; in FP16 gradients of {names} vanish at every loss scale"
    if fits:
        return f"BF16 has the range of FP32; FP16 would need {names} in FP32"
    if verdict.loss_scale.admissible is None:
        return "BF16 has the range of FP32; in FP16 no loss scale fits all layers"
    return f"BF16 has the range of FP32; in FP16 {count(len(keep), 'layer')} would overflow ({names})"


def _skips_to_the_end(profile: Profile) -> bool:
    return bool(profile.scaler) and profile.scaler[-1].found_inf
