"""What a file says of its hardware -> the numbers of the model, and what they rest on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cost.hardware import DATA_SHEET, DEFAULT, Level, described, missing, with_speeds
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.emit import sources

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
dim batch = 16, d = 32

model Net {
  param w: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x * w
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 4, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
POD = """
use std.clusters: h100

cluster small {
  device = h100
  nodes = 2
  devices = 4
  network = 400Gb/s
  latency = 7us
}
"""


def checked(hardware: str) -> CheckedProgram:
    return sources.checked(hardware + PROGRAM, name="net.shard")


def test_the_numbers_of_a_file_and_what_they_rest_on() -> None:
    """The data sheet's link is the sum of both directions, 400 Gb/s are 50 GB/s."""
    found = described(checked(POD))
    assert found is not None
    assert (found.device, found.cluster, found.devices, found.nodes) == ("h100", "small", 4, 2)
    assert (found.compute, found.bandwidth, found.memory) == (989e12, 3350e9, 85_017_493_504)
    assert (found.link, found.network) == (450e9, 50e9)
    assert (found.link_latency, found.network_latency) == pytest.approx((5e-6, 7e-6), rel=1e-12)
    assert found.origin("link") == DATA_SHEET
    assert found.origin("launch") == DEFAULT
    assert missing(found, 8) == ()


def test_what_a_number_of_ranks_needs() -> None:
    found = described(checked("device big {\n  memory = 80GB\n}\n\ncluster wide {\n  device = big\n  devices = 2\n}\n"))
    assert found is not None
    assert [setting for _, _, setting in missing(found, 1)] == ["compute", "bandwidth"]
    assert missing(found, 4)[2:] == (("device", "big", "link"), ("cluster", "wide", "network"))


def test_a_cluster_of_a_library_brings_its_device() -> None:
    """The file names neither; levels come in order, and without nodes there are as many as it takes."""
    found = described(checked("use std.clusters: h100_24k\n"))
    assert found is not None
    assert (found.device, found.cluster, found.devices, found.nodes) == ("h100", "h100_24k", 8, 3072)
    assert found.levels == (Level("pod", 3072, 1.0), Level("hall", 24576, 7.0))
    assert (found.compute_f32, found.compute_f8) == (67e12, 1979e12)
    other = described(checked("use std.clusters: a100_pod\n"))
    assert other is not None
    assert (other.nodes, other.levels, other.compute_f8) == (0, (), 312e12)


@pytest.mark.parametrize(("precision", "rate"), [("f32", 67e12), ("tf32", 989e12 / 2), ("bf16", 67e12)])
def test_products_that_are_rounded_have_half_the_rate_of_16_bits(precision: str, rate: float) -> None:
    """As NVIDIA's data sheets have it: 494.7 of 989 TFLOP/s."""
    text = "use std.clusters: h100_24k\n" + PROGRAM.replace("train {", f"train {{\n  precision = {precision}")
    found = described(sources.checked(text))
    assert found is not None and found.compute_f32 == rate


@pytest.mark.parametrize(
    ("name", "device"), [("small", "h100"), ("std.clusters.gb200_nvl72", "gb200"), ("{folder}/other.shard", "mine")]
)
def test_another_cluster_is_planned_for(name: str, device: str, tmp_path: Path) -> None:
    """Of the file (not its first), of a library, the first of another file, before its devices."""
    (tmp_path / "other.shard").write_text("device mine {\n  memory = 1GB\n}\n\ncluster c {\n  device = mine\n}\n")
    sink = Sink()
    program = checked("use std.clusters: h200_pod\n" + POD)
    given = driver.with_cluster(program, name.format(folder=tmp_path), sink)
    assert given is not None, [d.message for d in sink.found]
    found, before = described(given), described(program)
    assert found is not None
    assert before is not None
    assert (before.device, found.device) == ("h200", device)


@pytest.mark.parametrize(
    ("name", "code", "help"),
    [
        ("smal", "SH202", "did you mean `small`?"), ("h100", "SH202", "it has `small`"),
        ("h100_pod", "SH202", "write `std.clusters.h100_pod`"),
        ("std.clusters.h100", "SH202", "it has `a100_pod`, `h100_pod`"),
        ("std.cluster.h100_pod", "SH203", "did you mean `std.clusters`?"), ("gone.shard", "SH203", ""),
        ("{folder}/empty.shard", "SH202", "`shardc calibrate -o machine.shard` writes"),
        ("{folder}/wrong.shard", "SH239", "did you mean `memory`?"),
    ],
)  # fmt: skip
def test_a_cluster_that_is_not_there(name: str, code: str, help: str, tmp_path: Path) -> None:
    (tmp_path / "empty.shard").write_text("dim a = 1\n")
    (tmp_path / "wrong.shard").write_text("device mine {\n  memry = 1GB\n}\n")
    sink = Sink()
    assert driver.with_cluster(checked(POD), name.format(folder=tmp_path), sink) is None
    assert [d.code for d in sink.found] == [code]
    assert "".join(sink.found[0].help).startswith(help)


def test_hardware_in_an_imported_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "other.shard").write_text("device mine {\n  memory = 1GB/s\n}\n\ncluster c {\n  device = mine\n}\n")
    sink = Sink()
    source = Source(str(tmp_path / "net.shard"), 'use "./other.shard": c\n' + PROGRAM)
    assert driver.check_source(source, sink) is None
    assert [d.message for d in sink.found] == ["`memory` of device `mine` must be a size"]


def test_all_clusters_of_the_library_have_speeds() -> None:
    program, sink = checked(POD), Sink()
    names = re.findall(r"(?m)^cluster (\w+)", (ROOT / "stdlib" / "clusters.shard").read_text())
    assert len(names) > 4
    for name in names:
        given = driver.with_cluster(program, f"std.clusters.{name}", sink)
        assert given is not None
        assert with_speeds(given, 4096, sink) is not None
    assert not sink.found


def test_without_a_device_there_is_no_hardware() -> None:
    assert described(checked("")) is None


def test_a_device_alone_has_all_ranks_in_one_node() -> None:
    found = described(checked("use std.clusters: h100\n"))
    assert found is not None
    assert (found.device, found.cluster, found.devices) == ("h100", "", 0)
    assert missing(found, 64) == ()
