"""What a script computes with its own autocast off stays as it is, calibrated and replayed: it is no news about half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from amp_doctor.probe import Probe
from amp_doctor.probe.dryrun import DryRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile

    Loss = Callable[[Tensor, Tensor], Tensor]


def off() -> Any:
    return torch.autocast("cuda", enabled=False)


def entropy(p: Tensor, y: Tensor) -> Tensor:
    """Autocast refuses it in half."""
    return F.binary_cross_entropy(p.float().sigmoid(), y)


def product(p: Tensor, y: Tensor) -> Tensor:
    """Its scores reach far beyond 65504."""
    large = 1000 * p.float()[:, None]
    return (large @ large.t()).mean() * 1e-6 + 0 * y.mean()


def nested(loss: Loss) -> Loss:
    def inside(p: Tensor, y: Tensor) -> Tensor:
        with off():
            return loss(p, y)

    return inside


def decorated(loss: Loss) -> Loss:
    wrapped: Loss = off()(loss)
    return wrapped


def trained(loss: Loss, *, after: bool, mode: str) -> tuple[Profile, list[str]]:
    torch.manual_seed(0)
    with DryRun(), Probe(steps=10, mode=mode) as probe:
        model = nn.Linear(8, 1).cuda()
        nn.init.constant_(model.bias, 2.0)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-4), torch.amp.GradScaler("cuda", init_scale=256)
        while True:
            x = torch.randn(16, 8, device="cuda")
            y = (x[:, 0] > 0).float()
            with torch.autocast("cuda"):
                p = model(x).squeeze(1)
                value = loss(p, y) if not after else None
            value = loss(p, y) if value is None else value
            optimizer.zero_grad()
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
    return probe.profile, [one.code for one in probe.findings]


@pytest.mark.parametrize("mode", ["auto", "observe"])
@pytest.mark.parametrize("loss", [entropy, product])
@pytest.mark.parametrize("way", [nested, decorated, None], ids=["nested", "decorated", "after"])
def test_what_is_computed_outside_is_not_found(way: Any, loss: Loss, mode: str) -> None:
    profile, codes = trained(way(loss) if way else loss, after=way is None, mode=mode)
    assert profile.replay is not None
    assert profile.replay.exact
    assert codes == []
    assert [one for one in profile.operators if one.precision.startswith("O1")] == []


def test_the_same_inside_is() -> None:
    assert "AMP605" in trained(product, after=False, mode="auto")[1]


@pytest.mark.parametrize("enabled", [True, False])
def test_regions_are_followed_as_they_are_written(enabled: bool) -> None:
    """Calibrating switches them off; the innermost decides."""
    met: list[tuple[bool, bool]] = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with DryRun(), Probe(steps=5, mode="calibrate") as probe:
        scalers = probe._session.scalers
        while True:
            with torch.autocast("cuda", enabled=enabled):
                loss = model(torch.ones(1, 2)).sum()
                met.append((scalers.inside, scalers.outside))
                with off():
                    met.append((scalers.inside, scalers.outside))
                with pytest.raises(ZeroDivisionError), off():
                    1 / 0  # noqa: B018
                met.append((scalers.inside, scalers.outside))
            met.append((scalers.inside, scalers.outside))
            loss.backward()
            optimizer.step()
    assert met[:4] == [(enabled, False), (False, enabled), (enabled, False), (False, enabled)]
