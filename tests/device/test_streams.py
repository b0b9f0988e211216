"""What a GPU is told to copy beside its work, and what then waits for it, on pretended streams: each copy is on a
stream of its own, goes over page-locked memory, begins when its source is there, and is waited for by who reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from shardlang.runtime import device as devices
from shardlang.runtime.device import Cuda, expandable


class Place(NamedTuple):
    type: str


GPU: Any = Place("cuda")


class Machine:
    """In place of torch: what the host tells the device, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.streams = 0
        self.now: Any = Stream(self, "compute")
        self.cuda = SimpleNamespace(
            current_stream=lambda device=None: self.now, Stream=self.stream,
            current_device=lambda: 0, stream=self.on, Event=self.event, set_device=lambda device: None,
        )  # fmt: skip
        self._C = SimpleNamespace(_accelerator_setAllocatorSettings=self.told.append)
        less = [SimpleNamespace(allow_tf32=True) for _ in range(2)]
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=less[0]), cudnn=less[1])

    def stream(self, device: Any) -> Stream:
        """A new one."""
        self.streams += 1
        return Stream(self, "copies" if self.streams == 1 else f"copies {self.streams}")

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return Event(self)

    def device(self, name: str, number: int) -> str:
        return f"{name}:{number}"

    def empty(self, shape: Any, dtype: Any, pin_memory: bool = False) -> Any:
        return Memory(self, "page-locked" if pin_memory else "host")

    def empty_like(self, x: Any, device: Any) -> Any:
        self.told.append(f"memory of {self.now.name}")
        return Memory(self, "device")


class Stream:
    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name

    def wait_stream(self, other: Any) -> None:
        self.machine.told.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.machine.told.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> Any:
        self.machine.told.append(f"{self.name} marks")
        return SimpleNamespace(
            name=f"the mark of {self.name}",
            synchronize=lambda: self.machine.told.append(f"host waits for the mark of {self.name}"),
        )


class Event:
    made = 0

    def __init__(self, machine: Machine) -> None:
        self.machine, self.at = machine, Event.made
        Event.made += 1

    def record(self) -> None:
        self.machine.told.append(f"{self.machine.now.name} notes a time")

    def synchronize(self) -> None:
        self.machine.told.append("host waits for a time")

    def elapsed_time(self, end: Event) -> float:
        return 250.0 * (end.at - self.at)


class Memory:
    shape, dtype = (2,), "f32"

    def __init__(self, machine: Machine, place: str) -> None:
        self.machine, self.place = machine, place
        self.device = GPU if place == "device" else Place("cpu")

    def contiguous(self) -> Memory:
        return self

    def pin_memory(self) -> Memory:
        return Memory(self.machine, "page-locked")

    def _copied(self, source: str, target: str, freely: bool) -> None:
        waits = "" if freely else ", waited for"
        self.machine.told.append(f"{self.machine.now.name} copies {source} to {target}{waits}")

    def to(self, device: Any, non_blocking: bool = False) -> Memory:
        self._copied(self.place, "device", non_blocking)
        return Memory(self.machine, "device")

    def copy_(self, x: Memory, non_blocking: bool = False) -> Memory:
        self._copied(x.place, self.place, non_blocking)
        return self

    def record_stream(self, stream: Any) -> None:
        self.machine.told.append(f"memory is used by {stream.name}")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(devices, "torch", made)
    return made


def test_a_batch_comes_beside_the_work_before_it(machine: Machine) -> None:
    host: Any = Memory(machine, "host")
    there: Any = Cuda().copied(host, GPU)
    assert there.place == "device"
    assert machine.told == [
        "copies copies page-locked to device", "compute waits for copies", "memory is used by compute",
    ]  # fmt: skip


def test_f32_has_all_its_bits(machine: Machine) -> None:
    """In products and, where torch leaves some out by default, in convolutions; unless `precision = tf32`."""
    kind, flags = Cuda(), (machine.backends.cuda.matmul, machine.backends.cudnn)
    assert kind.take(GPU) == {"device_id": GPU}
    assert [flag.allow_tf32 for flag in flags] == [False, False]
    kind.round_products(True)
    assert [flag.allow_tf32 for flag in flags] == [True, True]


@pytest.mark.parametrize("own", ["", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_segments_grow(machine: Machine, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user's variables say anything of the allocator."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(own, "max_split_size_mb:64")
    Cuda().take(GPU)
    assert machine.told == ([] if own else ["expandable_segments:True"])
    assert expandable() == (not own)
    if own:
        monkeypatch.setenv(own, "expandable_segments:True,max_split_size_mb:64")
    assert expandable()


def test_the_time_of_a_step_is_that_of_the_device(machine: Machine) -> None:
    """Which notes it when it comes there; the host waits only when it wants to know."""
    kind = Cuda()
    begin, end = kind.moment(), kind.moment()
    assert machine.told == ["compute notes a time"] * 2
    assert kind.between(begin, end) == 0.25  # seconds
    assert machine.told[2:] == ["host waits for a time"]


def test_a_figure_goes_once_it_is_there(machine: Machine) -> None:
    """The host waits for it alone, and when it is asked for."""
    made: Any = Memory(machine, "device")

    def result() -> Any:
        machine.told.append(f"{machine.now.name} computes")
        return made

    found: Any = Cuda().fetched(result)
    told = [
        "copies waits for compute", "copies computes", "copies copies device to page-locked",
        "memory is used by copies", "copies marks",
    ]  # fmt: skip
    assert machine.told == told
    assert found().place == "page-locked"
    assert machine.told == [*told, "host waits for the mark of copies"]


def test_what_is_saved_leaves_and_comes_beside_the_work(machine: Machine) -> None:
    """The memory that it leaves is used anew once it has left; it is read once it has come."""
    kind = Cuda()
    saved: Any = Memory(machine, "device")
    here, left = kind.leaving(saved)
    told = ["copies waits for compute", "copies copies device to page-locked", "copies marks"]
    assert machine.told == told
    left()
    assert machine.told == [*told, "compute waits for the mark of copies"]
    machine.told.clear()
    found = kind.coming(here, GPU)
    told = [
        "memory of compute", "copies waits for compute", "copies copies page-locked to device", "copies marks",
    ]  # fmt: skip
    assert machine.told == told
    found()
    assert machine.told == [*told, "compute waits for the mark of copies"]


def test_a_batch_waits_for_no_other_copies(machine: Machine) -> None:
    """What is saved, and figures, go once the device has computed them; a batch made ahead is not behind these."""
    kind = Cuda()
    host: Any = Memory(machine, "host")
    saved: Any = Memory(machine, "device")
    here, _ = kind.leaving(saved)
    kind.fetched(lambda: saved)
    for _ in range(2):  # the same stream for the next batch
        machine.told.clear()
        kind.copied(host, GPU)
        assert machine.told == [
            "copies 3 copies page-locked to device", "compute waits for copies 3", "memory is used by compute",
        ]  # fmt: skip
    machine.told.clear()
    kind.coming(here, GPU)
    assert machine.told[1:] == [
        "copies waits for compute", "copies copies page-locked to device", "copies marks",
    ]  # fmt: skip
