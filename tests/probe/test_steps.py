"""How steps are counted: what fires torch's step hooks and what does not, by exact numbers (numerics note, section 3.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from amp_doctor.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amp_doctor.diagnosis.profile import Profile

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "SGD fused": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "Adagrad fused": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, fused=True),
    "Adam foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=True),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
INFINITE = {2, 3, 6}


def test_the_first_step_and_backward_pass_have_their_lines() -> None:
    """Of the user's own code, however deep in a library they are."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(steps=3) as probe:
        for _ in range(5):
            backward(model)
            optimizer.step()
    lines = {name: (source.path, source.line) for name, source in probe.profile.places.items()}
    code = backward.__code__
    assert lines["backward"] == (__file__, code.co_firstlineno + 5)
    first = test_the_first_step_and_backward_pass_have_their_lines.__code__.co_firstlineno
    assert lines["step"] == (__file__, first + 7)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def backward(model: nn.Module, factor: float = 1.0, scaler: Any = None, *, infinite: bool = False) -> None:
    loss = factor * model(torch.ones(4, 3)).square().mean()
    if infinite:
        # Zero, with a gradient that is not finite.
        loss = loss + (0 * next(model.parameters())).sum().sqrt()
    (loss if scaler is None else scaler.scale(loss)).backward()


def counts(profile: Profile) -> list[tuple[str, int, int, int]]:
    return [(log.name, log.attempted, log.taken, log.skipped) for log in profile.optimizers]


def probed(train: Callable[[], object], steps: int = 8, mode: str = "observe") -> Profile:
    with Probe(steps=steps, mode=mode) as probe:
        train()
    profile = probe.profile
    assert profile.steps.attempted == profile.steps.taken + profile.steps.skipped
    assert [note for note in profile.notes if "switched off" in note] == []
    return profile


@each_maker
def test_the_run_ends_in_the_step_that_was_asked_for(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = linear()
    optimizer = make(model.parameters())
    begun = 0

    def train() -> None:
        nonlocal begun
        while True:
            begun += 1
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    profile = probed(train)
    assert (profile.ended, begun) == ("steps", 8)
    assert counts(profile) == [(type(optimizer).__name__, 8, 8, 0)]
    assert len(profile.loss) == 8


@each_maker
def test_a_run_that_ends_by_itself(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = linear()
    optimizer = make(model.parameters())

    def train() -> None:
        for _ in range(3):
            backward(model)
            optimizer.step()

    profile = probed(train)
    assert (profile.ended, profile.steps.attempted) == ("finished", 3)


# Ordinary optimizers fire nothing when a scaler skips them; fused ones fire although nothing moves.
@pytest.mark.parametrize("mode", ["observe", "auto", "calibrate"])
@each_maker
def test_skipped_steps_are_attempts(make: Callable[[Any], torch.optim.Optimizer], mode: str) -> None:
    model = linear()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    moved = []

    def train() -> None:
        for number in range(1, 100):
            optimizer.zero_grad()
            backward(model, scaler=scaler, infinite=number in INFINITE)
            before = model.weight.detach().clone()
            scaler.step(optimizer)
            moved.append(not torch.equal(before, model.weight))
            scaler.update()

    profile = probed(train, mode=mode)
    # The step that reaches the end stops inside `scaler.step`.
    assert moved == [number not in INFINITE for number in range(1, 8)]
    assert counts(profile) == [(type(optimizer).__name__, 8, 5, 3)]
    assert {event.step for event in profile.scaler if event.found_inf} == INFINITE
    if mode == "observe":
        assert [event.scale for event in profile.scaler] == [2.0**k for k in (16, 16, 15, 14, 14, 14, 13, 13)]
    assert profile.first_nonfinite is None


@each_maker
def test_endless_skipping_ends(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = linear()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        while True:
            optimizer.zero_grad()
            backward(model, scaler=scaler, infinite=True)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    assert counts(probed(train)) == [(type(optimizer).__name__, 8, 0, 8)]


@pytest.mark.parametrize("micro", [1, 2, 5])
def test_accumulation(micro: int) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        number = 0
        while True:
            number += 1
            backward(model, 1 / micro)
            if number % micro == 0:
                optimizer.step()
                optimizer.zero_grad()

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    (layer,) = profile.layers
    assert layer.sites["weight_grad"].histogram.elements == 8 * micro * 8
    # The loss of a step is what the user sees: the sum of its parts.
    with torch.no_grad():
        first = float(linear()(torch.ones(4, 3)).square().mean())
    assert profile.loss[0] == pytest.approx(first, rel=1e-5)


def test_lbfgs_makes_one_step_of_many_backward_passes() -> None:
    model = linear()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3, tolerance_grad=0, tolerance_change=0)
    passes = 0

    def closure() -> float:
        nonlocal passes
        passes += 1
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss.item()

    def train() -> None:
        while True:
            optimizer.step(closure)

    profile = probed(train)
    assert counts(profile) == [("LBFGS", 8, 8, 0)]
    assert passes >= 16
    assert profile.layers[0].sites["weight_grad"].histogram.elements == passes * 8


def test_closures_of_ordinary_optimizers() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss

    def train() -> None:
        while True:
            optimizer.step(closure)

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    assert len(profile.loss) == 8
    assert profile.layers[0].sites["weight_grad"].histogram.elements == 64


def test_optimizers_that_step_in_the_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    passes = 0

    def train() -> None:
        nonlocal passes
        while True:
            passes += 1
            backward(model)

    profile = probed(train)
    assert profile.steps.attempted == passes == 8


class Counting(torch.optim.SGD):
    """A subclass whose step calls its parent's, which fires torch's hooks a second time."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Twice(Counting):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    """An Optimizer that holds another one, as Lookahead and OSS do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda parameters: Counting(parameters, lr=0.1), "Counting"),
        (lambda parameters: Twice(parameters, lr=0.1), "Twice"),
        (lambda parameters: Wrapper(torch.optim.SGD(parameters, lr=0.1)), "SGD"),
        (lambda parameters: Wrapper(Counting(parameters, lr=0.1)), "Counting"),
    ],
    ids=["subclass", "subclass of a subclass", "wrapper", "wrapper of a subclass"],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_calls_a_step_is_one(make: Callable[[Any], Any], name: str, scaled: bool) -> None:
    Counting([nn.Parameter(torch.ones(1))], lr=0.1)
    model = linear()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)

    def train() -> None:
        for _ in range(100):
            optimizer.zero_grad()
            backward(model, 1.0, scaler)
            scaler.step(optimizer)
            scaler.update()

    profile = probed(train)
    assert profile.steps == type(profile.steps)(8, 8, 8, 0)
    assert [log for log in counts(profile) if log[0] == name] == [(name, 8, 8, 0)]


def test_several_optimizers_and_whose_steps_count() -> None:
    first, second = linear(), linear()
    optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.1)]

    def train() -> None:
        while True:
            for model, optimizer, times in zip((first, second), optimizers, (1, 3), strict=True):
                for _ in range(times):
                    optimizer.zero_grad()
                    backward(model)
                    optimizer.step()

    assert counts(probed(train)) == [("SGD", 8, 8, 0), ("Adam", 21, 21, 0)]


@pytest.mark.parametrize("same", [True, False], ids=["the same weights", "other weights"])
def test_an_optimizer_that_takes_the_place_of_another_is_counted_on(same: bool) -> None:
    models = [linear(), linear()]
    models[1] = models[not same]
    optimizers = [torch.optim.SGD(models[0].parameters(), 0.1), torch.optim.Adam(models[1].parameters(), 0.1)]

    def train() -> None:
        for number in range(1000):
            later = number >= 4
            optimizers[later].zero_grad()
            backward(models[later])
            optimizers[later].step()

    profile = probed(train, steps=20)
    assert (profile.steps.attempted, profile.steps.taken, profile.ended) == (20, 20, "steps")
    assert counts(profile) == [("SGD", 4, 4, 0), ("Adam", 16, 16, 0)]
    assert profile.notes == (
        "SGD stopped stepping after 4 steps: those of Adam are counted on, and so whenever the script takes another",
    )


def test_a_script_that_takes_new_models_and_optimizers_all_the_time_is_stopped() -> None:
    """Federated averaging, folds of a cross-validation, restarts."""

    def train() -> None:
        for _ in range(100):
            model = linear()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(4):
                optimizer.zero_grad()
                backward(model)
                optimizer.step()

    profile = probed(train, steps=20)
    assert (profile.steps.attempted, profile.ended) == (20, "steps")
    assert sum(log.attempted for log in profile.optimizers) == 28  # eight before it was clear what the script does


def test_many_steps_of_a_second_optimizer_between_two_of_the_first_are_none_of_the_run() -> None:
    models = [linear(), linear()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]

    def train() -> None:
        while True:
            for number in (0, *8 * (1,)):
                optimizers[number].zero_grad()
                backward(models[number])
                optimizers[number].step()

    assert counts(probed(train)) == [("SGD", 8, 8, 0), ("SGD (2)", 56, 56, 0)]


def test_two_scalers() -> None:
    models = [linear(), linear()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scalers = [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", init_scale=8.0)]

    def train() -> None:
        for number in range(1, 100):
            for which, (model, optimizer, scaler) in enumerate(zip(models, optimizers, scalers, strict=True)):
                optimizer.zero_grad()
                backward(model, scaler=scaler, infinite=which == 1 and number in INFINITE)
                scaler.step(optimizer)
                scaler.update()

    assert counts(probed(train)) == [("SGD", 8, 8, 0), ("SGD (2)", 7, 4, 3)]


class OwnScaler(torch.amp.GradScaler):
    """As libraries subclass it: everything goes to the parent, with more around it."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.steps = 0

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


class LateScaler(OwnScaler):
    def unscale_(self, optimizer: Any) -> None:
        super().unscale_(optimizer)


@pytest.mark.parametrize("cls", [OwnScaler, LateScaler])
@pytest.mark.parametrize("mode", ["observe", "auto"])
def test_subclasses_of_the_scaler(cls: type[OwnScaler], mode: str) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        scaler = cls()
        for number in range(1, 100):
            optimizer.zero_grad()
            backward(model, scaler=scaler, infinite=number in INFINITE)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    assert counts(probed(train, mode=mode)) == [("SGD", 8, 5, 3)]


def test_a_scaler_that_is_switched_off() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def train() -> None:
        for _ in range(100):
            optimizer.zero_grad()
            backward(model, 1.0, scaler)
            scaler.step(optimizer)
            scaler.update()

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    assert profile.scaler == ()
    assert not profile.precision.scaler


def test_the_script_sets_the_scale_itself() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def train() -> None:
        for number in range(100):
            optimizer.zero_grad()
            backward(model, 1.0, scaler)
            scaler.step(optimizer)
            scaler.update(2.0**number if number < 5 else None)

    profile = probed(train, 12, mode="auto")
    # The first two steps of twelve calibrate, and say nothing about a scale.
    assert [(event.step, event.scale) for event in profile.scaler] == [
        (step, 2.0 ** min(step - 2, 4)) for step in range(3, 13)
    ]


def test_an_optimizer_of_no_class_of_torch_is_noted() -> None:
    class Plain:
        def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
            self.parameters = list(parameters)

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.parameters:
                    assert parameter.grad is not None
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None

    model = linear()
    optimizer = Plain(model.parameters())

    def train() -> None:
        while True:
            backward(model)
            optimizer.step()

    profile = probed(train)
    assert (profile.steps.attempted, profile.ended) == (0, "steps")
    assert any("no step of a torch.optim optimizer" in note for note in profile.notes)
    assert profile.layers[0].sites["weight_grad"].histogram.elements > 0


def test_no_step_at_all_is_noted() -> None:
    model = linear()
    profile = probed(lambda: model(torch.ones(2, 3)))
    assert (profile.steps.attempted, profile.ended) == (0, "finished")
    assert profile.notes == ("no optimizer step was seen",)


def test_a_step_that_raises_is_none() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken() -> float:
        raise ValueError("on purpose")

    def train() -> None:
        for number in range(100):
            optimizer.zero_grad()
            backward(model)
            if number % 2:
                with pytest.raises(ValueError, match="on purpose"):
                    optimizer.step(broken)
            else:
                optimizer.step()

    assert counts(probed(train)) == [("SGD", 8, 8, 0)]


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_a_script_that_catches_everything_is_stopped_all_the_same(kind: type[BaseException]) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begun = 0

    def train() -> None:
        nonlocal begun
        while begun < 50:
            begun += 1
            try:
                optimizer.zero_grad()
                backward(model)
                optimizer.step()
            except kind:
                continue

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    assert profile.ended == "steps"
    assert begun == (8 if kind is Exception else 50)


class Functional(nn.Module):
    """Never called: its forward is, or its weights are used outside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [lambda model: torch.jit.trace(model, torch.ones(1, 3)), torch.jit.script])
def test_models_of_torchscript(make: Callable[[nn.Module], nn.Module]) -> None:
    """What is counted while a model is traced must not become part of it."""
    plain = linear()

    def train() -> None:
        model = make(plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    [weights] = [one.sites["weight_grad"] for one in profile.layers if "weight_grad" in one.sites]
    assert weights.histogram.elements == 64


@pytest.mark.parametrize("way", ["forward", "functional_call", "bare"])
def test_models_that_are_not_called(way: str) -> None:
    model = Functional()
    parameters = list(model.parameters()) if way != "bare" else [torch.ones(2, 3, requires_grad=True)]

    def output(x: torch.Tensor) -> torch.Tensor:
        if way == "forward":
            return model.forward(x)
        if way == "functional_call":
            out: torch.Tensor = torch.func.functional_call(model, {"weight": parameters[0]}, (x,))
            return out
        return x @ parameters[0].t()

    def train() -> None:
        # Built while the probe watches, as a script does: so its parameters are known before the first backward pass.
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        while True:
            optimizer.zero_grad()
            output(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    profile = probed(train)
    assert counts(profile) == [("SGD", 8, 8, 0)]
    (layer,) = [one for one in profile.layers if "weight_grad" in one.sites]
    assert layer.sites["weight_grad"].histogram.elements == 48
    assert layer.name in ("Functional", "parameter 0 (2x3)")


def test_frozen_layers_and_one_that_thaws() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for number in range(100):
            if number == 3:
                model[1].requires_grad_(True)
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    profile = probed(train)
    seen = {
        layer.name: layer.sites["weight_grad"].histogram.elements
        for layer in profile.layers
        if "weight_grad" in layer.sites
    }
    # What thaws is met by the next step of its optimizer, and counted from then on.
    assert seen == {"1": 4 * 20, "2": 8 * 10}
    assert counts(profile) == [("SGD", 8, 8, 0)]


class Generator(nn.Linear):
    pass


class Critic(nn.Linear):
    pass


def test_roots_are_told_apart_by_their_class() -> None:
    generator, critic, second = nn.Sequential(Generator(2, 3)), nn.Sequential(Critic(3, 2)), nn.Sequential(Critic(3, 2))
    everything = nn.ModuleList([generator, critic, second])
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.1)
    criterion = nn.MSELoss()

    def train() -> None:
        while True:
            optimizer.zero_grad()
            fake = generator(torch.ones(4, 2))
            criterion(critic(fake) + second(fake), torch.zeros(4, 2)).backward()
            optimizer.step()

    names = {layer.name: layer.type for layer in probed(train).layers if "weight_grad" in layer.sites}
    assert names == {"Sequential.0": "Generator", "Sequential#2.0": "Critic", "Sequential#3.0": "Critic"}


def test_a_criterion_is_no_second_root() -> None:
    model, criterion = linear(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        while True:
            optimizer.zero_grad()
            criterion(model(torch.ones(4, 3)), torch.zeros(4, dtype=torch.int64)).backward()
            optimizer.step()

    profile = probed(train)
    assert [layer.name for layer in profile.layers if "weight_grad" in layer.sites] == ["Linear"]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.again = self.layer
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.tied(self.again(self.layer(x)))
        return out


def test_shared_modules_and_parameters_are_counted_once_per_gradient() -> None:
    model = Shared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        while True:
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    layers = {layer.name: layer.sites for layer in probed(train).layers}
    # Two calls of one layer give two outputs; its weight has one gradient, the sum over all three uses.
    assert layers["layer"]["activation"].histogram.elements == 2 * 8 * 12
    assert layers["layer"]["activation_grad"].histogram.elements == 2 * 8 * 12
    assert layers["tied"]["activation"].histogram.elements == 8 * 12
    assert layers["layer"]["weight_grad"].histogram.elements == 8 * 12
    assert "weight_grad" not in layers["tied"]
    assert "again" not in layers


@pytest.mark.parametrize(("asked", "times"), [("inputs", 1), ("weights", 2)])
def test_a_derivative_by_inputs_is_no_gradient_of_training(asked: str, times: int) -> None:
    """It moves no weight, and no loss scale multiplies it: that of a sum is 1, whatever the loss."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        while True:
            optimizer.zero_grad()
            x = torch.ones(4, 3, requires_grad=True)
            torch.autograd.grad(model(x).sum(), x if asked == "inputs" else [model.weight], create_graph=True)
            backward(model, 1e-6)
            optimizer.step()

    (layer,) = probed(train).layers
    gradients = layer.sites["activation_grad"].histogram
    assert gradients.elements == times * 8 * 8
    assert (gradients.amax < 1e-4) == (asked == "inputs")


def test_every_tenth_step_is_counted() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(steps=30, mode="observe", every=10) as probe:
        while True:
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
    (layer,) = probe.profile.layers
    assert layer.sites["weight_grad"].histogram.elements == 3 * 8
    assert layer.sites["activation"].histogram.elements == 3 * 8
    assert probe.profile.steps.attempted == 30


def test_layers_can_be_chosen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(steps=4, mode="observe", layers="2") as probe:
        while True:
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
    assert {layer.name for layer in probe.profile.layers} == {"2"}


def test_the_loss_of_a_closure_is_that_of_its_first_evaluation() -> None:
    model, x, y = nn.Linear(4, 1), torch.randn(32, 4), torch.randn(32, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    losses: list[list[float]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses[-1].append(loss.item())
        return loss

    with Probe(steps=3, mode="observe") as probe:
        for _ in range(3):
            losses.append([])
            optimizer.step(closure)
    assert len(losses[0]) > 1
    assert probe.profile.loss == tuple(step[0] for step in losses)


def test_a_cell_that_is_called_very_often_is_sampled() -> None:
    cell = nn.RNNCell(2, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with Probe(steps=1, mode="observe") as probe:
        h = torch.zeros(1, 3)
        for _ in range(100):
            h = cell(torch.randn(1, 2), h)
        h.sum().backward()
        optimizer.step()
    (layer,) = probe.profile.layers
    # 64 calls in full, then every sixteenth: 80 and 96.
    assert layer.sites["activation"].histogram.elements == 66 * 3
    assert layer.sites["activation"].sampled


def test_parameters_counted_before_their_module_is_met_are_that_modules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc.forward(x)

    model = Model()
    with Probe(steps=2, mode="observe") as probe:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.forward(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    (layer,) = (one for one in probe.profile.layers if "weight_grad" in one.sites)
    assert layer.name == "fc"
    assert layer.sites["weight_grad"].histogram.elements == 2 * (3 * 2 + 2)
