"""Numbers on their way out: rounded as torch rounds them, and few of them in memory at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from shardlang.cli.main import run
from shardlang.weights import export
from shardlang.weights.elements import FLOATS, converted, convertible
from tests.weights.test_mistakes import LINE, MAP

TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def bits(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.mark.parametrize("given", FLOATS)
@pytest.mark.parametrize("wanted", FLOATS)
def test_rounding_is_that_of_torch(given: str, wanted: str) -> None:
    """Half way between two numbers too, and what is no number."""
    torch.manual_seed(1)
    halves = torch.arange(0x3F80_0000, 0x3F90_0000, 0x4000, dtype=torch.int32).view(torch.float32)
    some = torch.cat([torch.randn(999), halves, -halves, torch.tensor([0.0, -0.0, 1e-6, torch.inf, -torch.inf])])
    numbers = some.to(TYPES[given])
    found = converted(bits(numbers), given, wanted, "w")
    assert np.array_equal(found, bits(numbers.to(TYPES[wanted])))
    assert convertible(given, wanted) and not convertible(given, "I64")
    none = converted(bits(torch.full((3,), torch.nan, dtype=TYPES[given])), given, wanted, "w")
    back = torch.from_numpy(none).view(TYPES[wanted]) if wanted == "BF16" else torch.from_numpy(none)
    assert back.isnan().all()


def test_few_numbers_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of 24 MB, joined, turned and made narrower, by 1 MB at a time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "_SOME", 2**20)
    draw = np.random.default_rng(1)
    mine = {name: draw.standard_normal((3000, 2000)).astype(np.float32) for name in ("up.weight", "side.weight")}
    mine |= {f"down[{at}].weight": draw.standard_normal((3000, 2000)).astype(np.float32) for at in range(2)}
    save_file(mine, "w.safetensors")
    Path("like").mkdir()
    Path("like/config.json").write_text("{}")
    theirs = {"model.joined.weight": (2000, 6000)} | {f"model.last.{at}.kernel": (3000, 2000) for at in range(2)}
    save_file({name: np.zeros(shape, np.float16) for name, shape in theirs.items()}, "like/model.safetensors")
    Path("their.map").write_text(MAP)
    tracemalloc.start()
    assert run(LINE) == 0
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 2**20
    found = load_file("out/model.safetensors")
    joined = np.concatenate([mine["up.weight"], mine["side.weight"]]).T.astype(np.float16)
    assert np.array_equal(found["model.joined.weight"], joined)
    assert np.array_equal(found["model.last.1.kernel"], mine["down[1].weight"].astype(np.float16))


def test_a_map_that_has_all_needs_nothing_to_be_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts joined and turned, of several layers, a tied one, and one that the map ignores."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    mine = {name: draw.standard_normal((3, 2)).astype(np.float32) for name in ("up.weight", "side.weight")}
    mine |= {f"down[{at}].weight": draw.standard_normal((3, 2)).astype(np.float16) for at in range(2)}
    save_file(mine, "w.safetensors")
    Path("their.map").write_text(f"{MAP}tied head = joined.weight\nignore seen.*\n")
    assert run(["export", "w.safetensors", "--map", "their.map", "-o", "out"]) == 0
    told = capsys.readouterr().out
    assert "  head is joined.weight once more\n" in told
    assert "  left out, as the map ignores them, and no --like has them: seen.*\n" in told
    joined = np.concatenate([mine["up.weight"], mine["side.weight"]]).T
    due = {"joined.weight": joined, "head": joined} | {f"last.{at}.kernel": mine[f"down[{at}].weight"] for at in (0, 1)}
    found = load_file("out/model.safetensors")
    assert found.keys() == due.keys() and all(np.array_equal(found[name], each) for name, each in due.items())
    assert all(found[name].dtype == each.dtype for name, each in due.items())
    # A folder without a configuration is enough to be like.
    assert run(["export", "w.safetensors", "--map", "their.map", "--like", "out", "-o", "again"]) == 0
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()


def test_a_head_of_its_own_is_not_told_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor that the map has as one of ours, and once more as tied where ours lack it."""
    monkeypatch.chdir(tmp_path)
    save_file({"embed": np.ones((3, 2), np.float32), "head": np.zeros((3, 2), np.float32)}, "w.safetensors")
    Path("their.map").write_text("embed = wte\nhead? = lm_head\ntied lm_head = wte\nignore old.*\n")
    assert run(["export", "w.safetensors", "--map", "their.map", "-o", "out"]) == 0
    assert "no --like has them: old.*\n" in capsys.readouterr().out
    assert load_file("out/model.safetensors").keys() == {"wte", "lm_head"}
