"""`rt.saved_on_host`: when the device lets go what a layer has saved, and when that comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.device import Cpu
from shardlang.runtime.state import saved_on_host


class Device(Cpu):
    """One whose memory is not the host's, which notes what happens."""

    apart = True

    def __init__(self) -> None:
        self.seen: list[str] = []

    def leaving(self, x: torch.Tensor) -> Any:
        name = f"{x.sum():.0f}"
        self.seen.append(f"sends {name}")
        return x.clone(), lambda: self.seen.append(f"waits for {name}")

    def coming(self, x: torch.Tensor, device: torch.device) -> Any:
        name = f"{x.sum():.0f}"
        self.seen.append(f"brings {name}")

        def found() -> torch.Tensor:
            self.seen.append(f"reads {name}")
            return x

        return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(saved_on_host, "kind_of", lambda _: made)
    return made


def layer(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Saves x + 1 and its square; and p, which stays."""
    h = x + 1
    return (h * h) * (h * h) * p


def test_what_is_saved_travels_beside_the_next_layer(device: Device) -> None:
    p, x = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with saved_on_host.sending([p]):
        y = rt.saved_on_host(layer, p, x)
        first = ["sends 2", "sends 4", "sends 4", "sends 16"]
        assert device.seen == first
        z = rt.saved_on_host(layer, p, y)
        second = ["sends 17", "sends 289", "sends 289", "sends 83521"]
        assert device.seen == [*first, *second, *(f"waits for{name[5:]}" for name in first)]
    assert device.seen[12:] == [f"waits for{name[5:]}" for name in second]
    device.seen.clear()
    (z.sum()).backward()
    last = [f"brings{name[5:]}" for name in reversed(second)]
    assert device.seen[:4] == last  # all of a layer at its first gradient, the last one first
    assert device.seen.index("brings 2") > device.seen.index("reads 17") > 4
    other = torch.ones(1, requires_grad=True)
    layer(torch.ones(1), layer(torch.ones(1), other)).sum().backward()
    assert torch.equal(x.grad, other.grad)  # type: ignore[arg-type]


def test_nothing_is_sent_where_no_gradient_flows(device: Device) -> None:
    p, x = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with torch.no_grad():
        rt.saved_on_host(layer, p, x)
    assert device.seen == []
