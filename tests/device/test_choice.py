"""Which kind of device a run takes: one for each rank or none, said in a line; every rank the same."""

from __future__ import annotations

import os
import re
import socket

import pytest
import torch
import torch.distributed as dist

from shardlang.errors import RunError
from shardlang.runtime import device as devices
from shardlang.runtime.device import Cpu, _in_child
from shardlang.runtime.launch.devices import DeviceChoice, chosen, of_rank
from tests.end_to_end.curves import ROOT


class Gpu(Cpu):
    """A kind of which there are `there` devices; a rank that sees one knows it by `own`."""

    name, noun = "gpu", "GPU"

    def __init__(self, there: int, own: str = "") -> None:
        self.there, self.own = there, own

    def count(self) -> int:
        return self.there

    def device(self, number: int) -> torch.device:
        return torch.device("cpu")

    def model(self) -> str:
        return "Maker's Model 1"

    def identity(self, device: torch.device) -> str:
        return self.own


def there(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    monkeypatch.setitem(devices.KINDS, "gpu", gpu)


def test_a_device_for_each_rank_or_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, Gpu(4))
    assert chosen(None, 4) == DeviceChoice("gpu", "4 x Maker's Model 1")
    assert chosen(None, 1) == DeviceChoice("gpu", "1 x Maker's Model 1")
    assert chosen(None, 8) == DeviceChoice("cpu", few="4 GPUs are fewer than 8 ranks")
    assert chosen("cpu", 4) == DeviceChoice("cpu")
    with pytest.raises(RunError, match=re.escape("8 ranks need 8 GPUs, and there are 4")):
        chosen("gpu", 8)


def test_without_any_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, Gpu(0))
    assert chosen(None, 8) == DeviceChoice("cpu")
    with pytest.raises(RunError, match="1 rank needs 1 GPU, and there is none"):
        chosen("gpu", 1)


def test_ranks_that_a_scheduler_started(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    there(monkeypatch, Gpu(2))
    two = DeviceChoice("gpu", "2 x Maker's Model 1")
    assert [of_rank(None, store, rank, 2, 2) for rank in (0, 1)] == [two] * 2
    there(monkeypatch, Gpu(1))
    with pytest.raises(RunError, match="2 ranks need 2 GPUs, and there is 1"):
        of_rank(None, None, 0, 2, 2)
    assert of_rank("cpu", dist.HashStore(), 0, 2, 2) == DeviceChoice("cpu")


def test_ranks_on_kinds_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    there(monkeypatch, Gpu(1))
    of_rank(None, store, 0, 2, 1)
    there(monkeypatch, Gpu(0))
    with pytest.raises(RunError, match="rank 0 computes on gpu, and rank 1 on cpu"):
        of_rank(None, store, 1, 2, 1)


@pytest.mark.parametrize(("owns", "apart"), [(("a", "b"), True), (("a", "a"), False), (("", ""), False)])
def test_one_visible_device_a_process(owns: tuple[str, str], apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some schedulers show each process its own device alone; others leave both with the same one."""
    store = dist.HashStore()
    store.add(f"device-of/{socket.gethostname()} {owns[1]}", 1)  # the other rank of this machine
    store.set("device/0", "gpu")
    there(monkeypatch, Gpu(1, owns[0]))
    if apart:
        found = of_rank(None, store, 0, 2, 2)
        assert found.apart and found.kind == "gpu"
    else:
        with pytest.raises(RunError, match="2 ranks need 2 GPUs"):
            of_rank(None, store, 0, 2, 2)


def test_devices_that_cannot_be_asked_are_no_cpu() -> None:
    """A failing driver is told; it is not a machine without GPUs."""
    assert _in_child(lambda: 3) == "3"
    for asked in (lambda: 1 // 0, lambda: os._exit(1)):
        with pytest.raises(RunError, match=r"the GPUs of this machine cannot be looked at: (Zero|the process)"):
            _in_child(asked)


def test_no_other_module_names_a_backend() -> None:
    """What a device is called, and what its process groups are, stands in one module."""
    words = ('"cuda"', '"nccl"', '"gloo"', "torch.cuda", "NCCL(")
    files = {file.name: file.read_text() for file in (ROOT / "shardlang" / "runtime").rglob("*.py")}
    assert [name for name, text in files.items() if any(word in text for word in words)] == ["device.py"]
