"""Random profiles for hypothesis: every field that a merge or the JSON touches."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import strategies as st

from amp_doctor.diagnosis.profile import (
    ENDS,
    PHASES,
    ROLES,
    Device,
    FirstNonfinite,
    Layer,
    Memory,
    Operator,
    OptimizerLog,
    Precision,
    Profile,
    ScalerEvent,
    Site,
    Source,
    Steps,
)
from amp_doctor.numerics.histogram import ExponentHistogram

DTYPES = st.sampled_from(["float16", "bfloat16", "float32"])
COUNTS = st.integers(1, 10_000)
# Powers of two, so that sums of a few of them are exact.
MAGNITUDES = st.integers(-60, 40).map(lambda e: 2.0**e)
SOURCES = st.none() | st.builds(Source, st.sampled_from(["a.py", "b.py"]), st.integers(1, 99))


@st.composite
def histograms(draw: st.DrawFn) -> ExponentHistogram:
    exponents = draw(st.dictionaries(st.integers(-60, 40), COUNTS, max_size=4))
    few = st.integers(0, 50)
    if not exponents:
        return ExponentHistogram({}, draw(few), draw(few), draw(few), draw(few))
    amax, amin = 1.5 * 2.0 ** max(exponents), 2.0 ** min(exponents)
    return ExponentHistogram(exponents, draw(few), draw(few), draw(few), draw(few), amax, amin, amax, -amax)


SITES = st.builds(
    Site, DTYPES, histograms(), st.booleans(), st.dictionaries(st.sampled_from(["bfloat16", "float16"]), COUNTS)
)
ROLE_SITES = st.dictionaries(st.sampled_from(ROLES), SITES, max_size=3).map(
    lambda found: {role: found[role] for role in ROLES if role in found}
)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Layer, ...]:
    names = draw(st.lists(st.sampled_from(["fc1", "fc2", "net.norm", "net", "criterion"]), unique=True, max_size=3))
    found = []
    for name in names:
        # Two ranks agree on what a layer is.
        kind = {"net.norm": "LayerNorm", "net": "Net", "criterion": "MSELoss"}.get(name, "Linear")
        order = ["fc1", "net.norm", "net", "fc2", "criterion"].index(name)
        found.append(Layer(name, kind, Source("m.py", order + 1), order, draw(ROLE_SITES), draw(ROLE_SITES)))
    return tuple(sorted(found, key=lambda layer: (layer.order, layer.name)))


OPERATORS = st.lists(
    st.builds(
        Operator,
        st.sampled_from(["matmul", "bmm"]),
        st.sampled_from(["fc1", "net"]),
        SOURCES,
        st.just("O1/float16"),
        st.just("overflow"),
        st.just("float32"),
        MAGNITUDES,
    ),
    max_size=3,
    unique_by=lambda one: (one.operator, one.layer, one.source),
).map(lambda found: tuple(sorted(found, key=lambda one: (-one.amax, one.layer, one.operator, str(one.source)))))


@st.composite
def scalers(draw: st.DrawFn) -> tuple[ScalerEvent, ...]:
    steps = sorted(draw(st.sets(st.integers(1, 30), max_size=12)))
    where = st.sampled_from([None, "fc1", "fc2"])
    return tuple(ScalerEvent(step, draw(MAGNITUDES), draw(st.booleans()), draw(where)) for step in steps)


OPTIMIZERS = st.lists(
    st.builds(
        OptimizerLog,
        st.sampled_from(["Adam", "SGD"]),
        st.integers(0, 50),
        st.integers(0, 50),
        st.integers(0, 50),
        st.lists(DTYPES, max_size=2).map(tuple),
        st.lists(DTYPES, max_size=2).map(tuple),
        st.none() | st.just(1e-8),
        st.none() | st.just(1e-3),
        st.sampled_from([(), (0.9, 0.999)]),
        st.integers(0, 100),
        st.integers(0, 200),
        st.none() | SITES,
    ),
    max_size=2,
).map(tuple)
FIRSTS = st.none() | st.builds(
    FirstNonfinite,
    st.integers(0, 50),
    st.sampled_from(PHASES),
    st.sampled_from(["fc1", "net"]),
    st.sampled_from(["nan", "inf"]),
    st.none() | st.just("matmul"),
    SOURCES,
)
DEVICES = st.sampled_from(
    [
        Device(),
        Device("cpu", "a CPU"),
        Device("cpu", "a CPU with AMX", None, True),
        Device("cuda", "Tesla P100", (6, 0)),
        Device("cuda", "Tesla T4", (7, 5)),
        Device("cuda", "NVIDIA GeForce GTX 1660", (7, 5)),
        Device("cuda", "NVIDIA H200", (9, 0), True),
        Device("mps", "Apple M3"),
    ]
)


@st.composite
def profiles(draw: st.DrawFn, device: Device | None = None) -> Profile:
    """A profile of one rank; all ranks of a run see the same number of losses."""
    names = st.lists(DTYPES, unique=True, max_size=2).map(lambda found: tuple(sorted(found)))
    return Profile(
        torch="2.13.0",
        device=device or draw(DEVICES),
        command=("train.py",),
        script="train.py",
        mode=draw(st.sampled_from(["auto", "observe", "calibrate"])),
        steps=Steps(50, draw(st.integers(0, 60)), draw(st.integers(0, 50)), draw(st.integers(0, 10))),
        optimizers=draw(OPTIMIZERS),
        ended=draw(st.sampled_from(ENDS)),
        ranks=1,
        seconds=draw(st.floats(0, 100)),
        loss=tuple(draw(st.lists(st.integers(-9, 9).map(float) | st.just(inf), min_size=3, max_size=3))),
        scaler=draw(scalers()),
        layers=draw(layers()),
        operators=draw(OPERATORS),
        first_nonfinite=draw(FIRSTS),
        precision=Precision(draw(names), draw(st.booleans()), draw(names), draw(st.booleans())),
        memory=Memory(draw(st.integers(0, 10**7)), 0, draw(st.none() | COUNTS), 64, 64),
        notes=tuple(sorted(draw(st.sets(st.sampled_from(["a", "b", "c"]))))),
    )


def scaled_gradients(profile: Profile, k: int) -> Profile:
    """The same run with every gradient times 2^k."""
    return replace(
        profile,
        layers=tuple(
            replace(
                layer,
                sites={
                    role: replace(site, histogram=site.histogram.shifted(k)) if role.endswith("_grad") else site
                    for role, site in layer.sites.items()
                },
            )
            for layer in profile.layers
        ),
    )
