"""`rt.saved_on_host`: when the device lets go what a layer has saved, and when that comes back."""

from __future__ import annotations

import weakref
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


def test_what_backward_never_reads_is_waited_for(device: Device) -> None:
    """It is on its way into memory that would be used anew."""
    p, x = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)

    def both(p: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() * p, (x + 4).square()

    with saved_on_host.sending([p]):
        used, unused = rt.saved_on_host(both, p, x)
    device.seen.clear()
    used.sum().backward()
    assert "brings 5" in device.seen and "reads 5" not in device.seen
    del used, unused
    assert device.seen[-1] == "reads 5"


def test_a_call_that_fails_holds_nothing(device: Device) -> None:
    p, x = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    sent: list[weakref.ref[torch.UntypedStorage]] = []

    def fails(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h = x + 1
        sent.append(weakref.ref(h.untyped_storage()))
        raise ValueError(f"after {h * h}")

    with pytest.raises(ValueError, match="after") as failure, saved_on_host.sending([p]):
        rt.saved_on_host(layer, p, x)
        rt.saved_on_host(fails, p, x)
    assert [told for told in device.seen if told.startswith("waits")] == [
        "waits for 2", "waits for 2", "waits for 4", "waits for 4", "waits for 16",
    ]  # fmt: skip
    frames = [at.frame for at in failure.traceback]
    assert saved_on_host._HostPass.last is None and not any(
        call.held for frame in frames for call in frame.f_locals.values() if isinstance(call, saved_on_host._Call)
    )


class Views(torch.autograd.Function):
    """Saves the numbers of one memory as f32 and as f64, and again after they were changed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        once = x * 3
        again = once.clone()
        ctx.save_for_backward(once.view(torch.float32), once, again, again[1:])
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        narrow, once, again, rest = ctx.saved_tensors
        assert narrow.dtype == torch.float32 and torch.equal(narrow.view(torch.float64), once)
        assert torch.equal(again, once) and torch.equal(rest, once[1:])
        return gradient * once


def test_one_memory_may_be_saved_in_two_types(device: Device) -> None:
    p, x = torch.ones(1, requires_grad=True), torch.arange(4.0, dtype=torch.float64, requires_grad=True)
    with saved_on_host.sending([p]):
        y = rt.saved_on_host(lambda p, x: Views.apply(x), p, x)
    y.sum().backward()
    assert torch.equal(x.grad, 3 * x.detach())  # type: ignore[arg-type]


def test_a_memory_that_is_changed_is_saved_as_it_was_each_time(device: Device) -> None:
    """torch would refuse backward here: a value that it has saved was changed."""
    p, x = torch.ones(1, requires_grad=True), torch.ones(3, requires_grad=True)

    def changed(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        first = h.square()
        h.mul_(5)
        return first + h.square()

    with saved_on_host.sending([p]):
        y = rt.saved_on_host(changed, p, x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2 * 4.0 + 2 * 100.0))  # type: ignore[arg-type]
