"""`shardc export`: what was trained here loads by `from_pretrained`, and computes there what it computes here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shardlang.cli.main import run
from tests.weights.theirs import loaded, logits, saved, shardc, tokens, trained

pytest.importorskip("transformers", reason="the library transformers is not installed")
pytestmark = pytest.mark.slow
WAYS = [("gpt2", "std", False), ("gpt2", "import", False), ("llama", "std", True), ("llama", "std", False),
        ("llama", "import", False), ("llama", "import", True)]  # fmt: skip


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}{'-tied' * way[2]}")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object, str]:
    name, way, tied = request.param
    folder = tmp_path_factory.mktemp("ran")
    model = trained(name, way, folder, tied)
    return folder, model, f"std.{name}" if way == "std" else str(folder / "net.map")


def export(folder: Path, names: str, weights: str, to: str) -> dict[str, torch.Tensor]:
    line = ["export", str(folder / weights), "--map", names, "--like", str(folder / "theirs"), "-o", str(folder / to)]
    assert run(line) == 0
    return saved(folder / to)


def test_from_pretrained_reads_it_and_computes_the_same(ran) -> None:
    folder, model, names = ran
    found = export(folder, names, "w.safetensors", "out")
    assert any(not torch.equal(found[name], tensor) for name, tensor in saved(folder / "theirs").items())
    there = {path.name for path in (folder / "theirs").iterdir()}
    assert {path.name for path in (folder / "out").iterdir()} == there and "tokenizer.json" in there
    again = loaded(type(model), folder / "out")
    for name, tensor in again.state_dict().items():
        assert name not in found or torch.equal(tensor, found[name]), name
    with torch.no_grad():
        theirs = again(input_ids=tokens(folder)).logits
    assert (logits(folder) - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_in_and_out_again_is_bit_for_bit(ran) -> None:
    """Weights that no step has changed: their files, byte for byte."""
    folder, _, names = ran
    text = (folder / "run.shard").read_text().replace("lr = 1e-3", "lr = 0.0").replace("weight_decay = 0.1", "")
    (folder / "still.shard").write_text(text.replace('to = "kept"', 'to = "still"'))
    shardc(folder, "run", "still.shard", "--ranks", "2", "--strategy", "dp", "--save-weights", "same.safetensors")
    for weights in ("same.safetensors", "still"):
        export(folder, names, weights, f"again_{weights}")
        for path in (folder / "theirs").iterdir():
            assert (folder / f"again_{weights}" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_checkpoint_gives_what_its_weights_give(ran) -> None:
    folder, _, names = ran
    one, other = (export(folder, names, weights, f"from_{weights}") for weights in ("w.safetensors", "kept"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_other_element_types_are_theirs(ran) -> None:
    folder, model, names = ran
    model.to(torch.bfloat16).save_pretrained(folder / "half")
    model.float()
    line = ["export", str(folder / "w.safetensors"), "--map", names, "--like", str(folder / "half")]
    assert run([*line, "-o", str(folder / "out_half")]) == 0
    wide, half = export(folder, names, "w.safetensors", "out_wide"), load_file(folder / "out_half/model.safetensors")
    assert all(torch.equal(half[name], wide[name].bfloat16()) for name in wide)
    loaded(type(model), folder / "out_half")
