"""`shardc calibrate`: what it writes is a program and a profile of this machine, whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import torch

from shardlang import driver
from shardlang.cost.calibrated import calls_of, constants, meeting
from shardlang.cost.hardware import MEASURED, Hardware, with_speeds
from shardlang.cost.planned import work
from shardlang.cost.predict import predict
from shardlang.cost.profile import read_profile
from shardlang.diagnostics.diagnostic import Sink
from shardlang.format.format import format_file
from shardlang.ops.declaration import REGISTRY
from shardlang.runtime.calibrate import clock, kernels
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from tests import warm
from tests.cli.process import NET, shardc

ROOT = Path(__file__).resolve().parents[2]
# The same measurements at few sizes, so that they take seconds.
FEW = """
import sys
from shardlang.runtime.calibrate import clock, collectives, kernels, machine
clock.TURNS, clock._LEAST, machine.TURNS, collectives._MOST_SECONDS = 3, 1e-5, 3, 1e-4
collectives._BESIDE_BYTES, collectives._BESIDE_SIZE = {"cpu": 16384}, 64
kernels.SIZES["cpu"], kernels.WIDTHS, kernels.LENGTHS["cpu"] = (4, 16), (8,), (4, 8)
kernels.BYTES["cpu"] = collectives.BYTES["cpu"] = (4096, 16384)
kernels.ELEMENTS["cpu"] = (100, 1000)
from shardlang.cli.commands import calibrate
calibrate._PROGRAMS = [(name, text.replace("= 30", "= 4"), each) for name, text, each in calibrate._PROGRAMS]
from shardlang.cli.main import main
main()
"""
EARLIER = "## Measured by `shardc calibrate`: an earlier time.\n"


def test_what_it_writes_is_planned_for(tmp_path: Path) -> None:
    """Two ranks: the program checks, is in its one form, has all speeds, and names its profile,
    which is one by the schema; numbers say that they were measured."""
    to = tmp_path / "machine.shard"
    to.write_text(EARLIER)
    ran = warm.run([sys.executable, "-c", FEW, "calibrate", "--device", "cpu", "--ranks", "2", "-o", str(to)])
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "collectives (" in ran.stdout
    assert f"--cluster {to}" in ran.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine.profile.json", "machine.shard"]
    text = (tmp_path / "machine.profile.json").read_text()
    jsonschema.validate(json.loads(text), json.loads((ROOT / "specs" / "profile.schema.json").read_text()))
    profile, sink = read_profile(text), Sink()
    assert {("all_reduce", 2, 2), ("all_gather", 2, 2), ("send", 2, 2)} <= set(profile.collectives)
    assert {"", "relu", "relu backward", "softmax"} <= set(profile.streams)
    written = to.read_text()
    assert format_file(parse(Source(str(to), written), sink)) == written
    program = driver.check_source(Source("net.shard", NET), sink)
    program = driver.with_cluster(program, str(to), sink) if program is not None else None
    assert program is not None, [d.message for d in sink.found]
    found = with_speeds(program, 2, sink)
    assert found is not None, [d.message for d in sink.found]
    assert (found.devices, found.origin("launch"), found.profile is not None) == (2, MEASURED, True)
    # From two sizes of a kernel, three turns each, a launch may come out as nothing; what `constants` makes of numbers
    # that are known is tested below.
    assert found.launch >= 0 and found.launch + profile.step > 0
    assert profile.beside >= 1 and (profile.meeting or found.meeting) == profile.meeting
    assert found.origin("meeting") == MEASURED
    plan = driver.plan_program(program, "dp", 2, sink)
    assert plan is not None
    assert 0 < predict(plan, found).step_s < 10


@pytest.mark.parametrize(
    ("words", "said"),
    [(("-o", "machine.json"), "must end in `.shard`"), (("-o", "no/m.shard"), "there is no folder `no`"), ((), "-o")],
)
def test_wrong_words(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ran = shardc("calibrate", *words, folder=tmp_path)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_program_of_the_user_stays(tmp_path: Path) -> None:
    """SH512 before anything is measured, also for what would be the profile."""
    (tmp_path / "net.shard").write_text(NET)
    (tmp_path / "m.profile.json").write_text("{}")
    for name in ("net", "m"):
        ran = shardc("calibrate", "--device", "cpu", "-o", f"{name}.shard", folder=tmp_path)
        assert ran.returncode == 2 and "error[SH512]" in ran.stderr and "holds something else" in ran.stderr
    assert (tmp_path / "net.shard").read_text() == NET and (tmp_path / "m.profile.json").read_text() == "{}"


def test_nothing_is_written_where_a_rank_fails(tmp_path: Path) -> None:
    """SH516, and the file that was there stays."""
    to = tmp_path / "machine.shard"
    to.write_text(EARLIER)
    fails = FEW.replace("from shardlang.cli", "kernels.copies = lambda clock: 1 / 0\nfrom shardlang.cli")
    ran = warm.run([sys.executable, "-c", fails, "calibrate", "--device", "cpu", "-o", str(to)])
    assert ran.returncode == 3
    assert "error[SH516]: the measurement on 1 rank ended" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == [EARLIER]


def test_nothing_is_written_where_the_time_is_over(tmp_path: Path) -> None:
    """SH516 with how long it took and what to do."""
    over = FEW.replace("from shardlang.cli", 'clock.LIMITS["cpu"] = 0.01\nfrom shardlang.cli')
    ran = warm.run([sys.executable, "-c", over, "calibrate", "--device", "cpu", "-o", str(tmp_path / "m.shard")])
    assert ran.returncode == 3
    assert "error[SH516]: measuring is not done after 0 s, " in ran.stderr
    assert "help: end what else runs on this machine, or measure with fewer ranks" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_where_little_time_is_left_each_has_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    moment = lambda: now[0]  # noqa: E731
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=moment, perf_counter=moment))
    for past, later, turns, hurried in ((0.5, 0.0, 7, 0), (0.5, 1e-3, 14, 0), (0.9, 1e-3, 1, 1)):
        calls: list[float] = []

        def call(calls: list[float] = calls, later: float = later) -> None:
            now[0] += 2e-3 + later * (len(calls) % 4)
            calls.append(now[0])

        own = clock.Clock(torch.device("cpu"), now[0] - past * clock.LIMITS["cpu"])
        assert 2e-3 - 1e-9 <= own.seconds(call) <= 2e-3 + 3 * later + 1e-9
        assert len(calls) - 2 == turns  # before these it warms, and times roughly
        assert (own.hurried, own.uneven) == (hurried, later > 0 and turns > 1)


def test_a_fault_of_a_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end as an operator that has no curve."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the kernel is broken")

    monkeypatch.setitem(kernels.BYTES, "cpu", (4096,))
    monkeypatch.setattr(torch.nn.functional, "relu", broken)
    with pytest.raises(RuntimeError, match="the kernel is broken"):
        kernels.streams(clock.Clock(torch.device("cpu")), {"relu": ("relu", "x")})


def test_what_operators_are_called_with_follows_from_their_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(REGISTRY.values())
    assert (calls["relu"], calls["add"], calls["embedding"]) == (
        ("relu", "x"), ("add", "x", "x"), ("embedding", "i", "x"),
    )  # fmt: skip
    assert (calls["softmax"], calls["layer_norm"]) == (("softmax", "x", "over"), ("layer_norm", "x", "over"))
    assert calls["bce_with_logits"] == ("binary_cross_entropy_with_logits", "x", "x")
    assert not {"matmul", "conv2d", "where", "attention", "batch_norm", "concat", "argmax"} & set(calls)
    monkeypatch.setitem(kernels.BYTES, "cpu", (4096, 16384))
    monkeypatch.setattr(clock, "TURNS", 3)
    told: list[str] = []
    found = kernels.streams(clock.Clock(torch.device("cpu")), calls, told.append)
    assert told == []
    assert calls.keys() <= found.keys()
    # Nothing is computed of these, or over an image.
    assert not {"rearrange", "relabel", "expand", "interpolate"} & set(calls)
    assert {"relu", "softmax", "layer_norm", "embedding backward", "dropout"} <= set(found)


def test_an_operator_that_torch_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setitem(kernels.BYTES, "cpu", (4096,))
    found = kernels.streams(clock.Clock(torch.device("cpu")), {"no_such": ("no_such", "x", "over")}, told.append)
    assert list(found) == [""]
    assert told == [f"`no_such` is not measured: torch {torch.__version__} has no such function of x, over"]


def test_the_meeting_of_steps_that_have_it() -> None:
    """Steps of two ranks that 40 us a collective would make, give it back, whatever the strategy."""
    points, sink = [[1000, 20.0], [100000, 60.0]], Sink()
    profile = read_profile(json.dumps({
        "format": 1, "device": "cpu", "launch": 7, "step": 100, "streams": {"": points}, "updates": {"sgd": points},
        "collectives": [{"kind": "all_reduce", "members": 2, "a_node": 2, "points": points}],
    }))  # fmt: skip
    steps, small = {}, {}
    for name in ("dp", "both"):
        text = NET.replace("strategy dp {", f"strategy {name} {{")
        program = driver.check_source(Source("net.shard", text), sink)
        plan = driver.plan_program(program, name, 2, sink) if program is not None else None
        assert plan is not None, [d.message for d in sink.found]
        machine = Hardware("cpu", compute=1e12, compute_f32=1e12, bandwidth=1e12, link=1e12, launch=7e-6, step=1e-4,
                           meeting=4e-5, devices=0, profile=profile)  # fmt: skip
        steps[name], small[name] = predict(plan, machine).step_s * 1e6, work(plan)
    assert meeting(steps, small, profile) == pytest.approx(4e-5, rel=1e-6)
    assert meeting({name: us / 2 for name, us in steps.items()}, small, profile) == 0.0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_constants_of_steps_that_have_them(asynchronous: bool) -> None:
    """Steps that a launch of 7 us and 100 us a step would make, give both back."""
    sink = Sink()
    points = [[1000, 0.5], [100000, 0.6]]
    grid = {"m": [4, 64], "n": [4, 64], "k": [4, 64], "us": [0.5] * 8}
    profile = read_profile(json.dumps({
        "format": 1, "device": "cpu", "asynchronous": asynchronous, "products": {"f32": grid},
        "streams": {"": points}, "updates": {"sgd": points},
    }))  # fmt: skip
    steps, small = {}, {}
    for layers in (1, 3, 9):
        text = NET.replace("  param w: [d] = normal(0.5)", f"  layer parts[{layers}] = Linear(d, d)")
        text = "use std.nn: Linear\n" + text.replace("return x * w", "return parts(x)")
        program = driver.check_source(Source("net.shard", text.replace("strategy dp", "strategy one")), sink)
        plan = driver.plan_program(program, None, 1, sink) if program is not None else None
        assert plan is not None, [d.message for d in sink.found]
        machine = Hardware("cpu", compute=1e12, compute_f32=1e12, bandwidth=1e12, launch=7e-6, step=1e-4, devices=0,
                           profile=profile)  # fmt: skip
        steps[str(layers)] = predict(plan, machine).step_s * 1e6
        small[str(layers)] = work(plan)
    launch, step = constants(steps, small, profile)
    assert (launch, step) == (pytest.approx(7e-6, rel=1e-6), pytest.approx(1e-4, rel=1e-6))
