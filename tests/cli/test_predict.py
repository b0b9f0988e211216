"""`shardc predict`: the values of each example, under every strategy, are those of one device."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shardlang import runtime as rt
from shardlang.cli.main import run
from shardlang.runtime.data.arrays import read_digits
from shardlang.runtime.program import BatchSource
from tests import warm
from tests.bind.test_losses import DIGITS
from tests.cli.process import SHARDC

WAYS = [
    ("data_parallel", 1), ("both", 4), ("sharded", 2), ("rows_of_gradients", 2), ("all_of_it", 4),
    ("tensor_parallel", 4),
]  # fmt: skip
RANKS = ["--ranks", "2", "--strategy", "data_parallel"]


def shardc(folder: Path, *words: str) -> str:
    done = warm.run([*SHARDC, *words], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, its weights and its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    text = DIGITS.replace("steps = 8", 'steps = 8\n  checkpoint = every(4, keep = 2, to = "kept")')
    (folder / "digits.shard").write_text(text.replace("|> relu", "|> relu |> dropout(p = 0.3)"))
    shardc(folder, "run", "digits.shard", *RANKS, "--save-weights", "w.safetensors")
    return folder


def expected(folder: Path, split: str = "test") -> dict[str, np.ndarray]:
    """The same from the formula, in float64."""
    fields = [rt.Field("image", "f32", (64, 64)), rt.Field("label", "i64", (64,), bound=10)]
    image, label = read_digits(BatchSource("digits", batch=64, fields=fields, split=split), Path()).arrays.values()
    w = {name: value.astype(np.float64) for name, value in load_file(folder / "w.safetensors").items()}
    h = np.maximum(image @ w["up.weight"].T + w["up.bias"], 0.0)
    scores = h @ w["down.weight"].T + w["down.bias"]
    return {"h": h, "scores": scores, "accuracy_1": scores.argmax(1), "accuracy_2": scores.argmax(1) == label}


@pytest.mark.parametrize(("strategy", "ranks"), WAYS)
def test_values_are_those_of_one_device(strategy: str, ranks: int, trained: Path) -> None:
    """The last batch is short, and none of its filling is there. Two values are whole on ranks."""
    out = f"{strategy}.npz"
    words = ["--ranks", str(ranks), "--strategy", strategy, "--weights", "w.safetensors", "--out", out]
    values = [word for name in ("h", "scores", "accuracy_1", "accuracy_2") for word in ("--value", name)]
    said = shardc(trained, "predict", "digits.shard", *words, *values)
    assert f"`scores` [360, 10] of float32 in {trained / out}" in said and "eval.accuracy" in said
    with np.load(trained / out) as found:
        assert set(found.files) == {"h", "scores", "accuracy_1", "accuracy_2"} and found["accuracy_2"].dtype == bool
        for name, value in expected(trained).items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5)


def test_values_of_a_checkpoint(trained: Path) -> None:
    """By default what `train` names; the newest checkpoint is that of the weights in the end."""
    for name, words in {"w": ["--weights", "w.safetensors"], "c": ["--checkpoint", "kept"]}.items():
        shardc(trained, "predict", "digits.shard", *RANKS, *words, "--out", f"{name}.npz")
    with np.load(trained / "w.npz") as one, np.load(trained / "c.npz") as other:
        assert one.files == other.files == ["scores"]
        assert np.array_equal(one["scores"], other["scores"])
    shardc(trained, "predict", "digits.shard", *RANKS, "--checkpoint", "kept/step-4", "--out", "c.npz")
    with np.load(trained / "w.npz") as one, np.load(trained / "c.npz") as other:
        assert not np.array_equal(one["scores"], other["scores"])


def test_examples_are_of_data_without_eval(trained: Path) -> None:
    (trained / "alone.shard").write_text(DIGITS.replace('  eval = digits(split = "test", batch = batch)\n', ""))
    shardc(trained, "predict", "alone.shard", *RANKS, "--weights", "w.safetensors", "--out", "alone.npz")
    with np.load(trained / "alone.npz") as found:
        np.testing.assert_allclose(found["scores"], expected(trained, "train")["scores"], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--out", "a.npz"], 2, "nothing says the trained parameters: give --weights FILE or --checkpoint DIR"),
        (
            ["--out", "a.npz", "--weights", "w.safetensors", "--checkpoint", "kept"],
            2,
            "are of --weights or of --checkpoint, not of",
        ),
        (
            ["--out", "no/a.npz", "--weights", "w.safetensors"],
            2,
            "`no/a.npz` cannot be written: there is no folder `no`",
        ),
        (
            ["--out", "a.npz", "--weights", "w.safetensors", "--value", "score"],
            2,
            "no value `score` of each example; did you mean",
        ),
        (["--out", "a.npz", "--weights", "no.safetensors"], 2, "`no.safetensors` does not exist"),
        (["--out", "a.npz", "--checkpoint", "no"], 2, "`no` does not exist"),
        (["--out", "digits.shard", "--weights", "w.safetensors"], 3, "error[SH512]: what is predicted would replace"),
    ],
)
def test_mistakes(words: list[str], code: int, said: str, trained: Path) -> None:
    before = (trained / "digits.shard").read_text()
    done = warm.run([*SHARDC, "predict", "digits.shard", *RANKS, *words], cwd=trained)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert not (trained / "a.npz").exists() and (trained / "digits.shard").read_text() == before


def test_a_damaged_checkpoint_says_what_predict_can_do(trained: Path, tmp_path: Path) -> None:
    """A run would be told of `--overwrite`, which `predict` has not."""
    copy = shutil.copytree(trained / "kept" / "step-4", tmp_path / "step-4")
    (copy / "index.json").write_text("{}")
    words = ["predict", "digits.shard", *RANKS, "--checkpoint", str(copy), "--out", "a.npz"]
    done = warm.run([*SHARDC, *words], cwd=trained)
    assert done.returncode == 3 and "error[SH508]: no checkpoint is whole" in done.stderr, done.stderr
    assert "\nhelp: name another checkpoint\n" in done.stderr


def test_a_value_that_is_always_a_pending_sum_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank has a summand of `parts`, and the sum is over what is made of it."""
    text = DIGITS.replace("return down(h)", "parts = down(h)\n    return parts + further(h)")
    layer = "layer down = Linear(hidden, classes, bias = false)"
    text = text.replace("layer down = Linear(hidden, classes)", f"{layer}\n  {layer.replace('down', 'further')}")
    (trained / "parts.shard").write_text(text)
    words = ["--ranks", "2", "--strategy", "tensor_parallel", "--out", str(trained / "a.npz")]
    words += ["--weights", str(trained / "w.safetensors")]
    assert run(["predict", str(trained / "parts.shard"), *words, "--value", "parts"]) == 1
    said = capsys.readouterr().err
    assert "error[SH400]: `parts` is nowhere more than a pending sum, which `predict` cannot write yet" in said
    assert "ask for a value that is computed from it" in said
    assert not (trained / "a.npz").exists()


def test_a_program_that_names_nothing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = DIGITS.replace("  scores = model(image)\n", "").replace("cross_entropy(scores", "cross_entropy(model(image)")
    text = "\n".join(line for line in text.splitlines() if "metric" not in line)
    (trained / "unnamed.shard").write_text(text)
    words = ["--out", str(trained / "a.npz"), "--weights", str(trained / "w.safetensors")]
    assert run(["predict", str(trained / "unnamed.shard"), *RANKS, *words]) == 2
    said = "name one there, as `scores = model(x)`, or give one by --value; "
    told = capsys.readouterr().err
    assert f"`train` names no value of each example: {said}the model returns down_out; there are: " in told
    # A value goes by its path in the plan too.
    words = [*RANKS, "--weights", "w.safetensors", "--out", "path.npz", "--value", "down.return", "--value", "h"]
    shardc(trained, "predict", "unnamed.shard", *words)
    with np.load(trained / "path.npz") as found:
        assert set(found.files) == {"down.return", "h"}
        np.testing.assert_allclose(found["down.return"], expected(trained)["scores"], rtol=0, atol=2e-5)


def test_weights_of_a_program_with_a_name_map(trained: Path) -> None:
    """A file for `init` is read by its map, and what `--save-weights` wrote under the program's paths."""
    weights = load_file(trained / "w.safetensors")
    save_file({f"net.{path}": value for path, value in weights.items()}, trained / "theirs.safetensors")
    (trained / "names.map").write_text("".join(f"{path} = net.{path}\n" for path in weights))
    text = (trained / "digits.shard").read_text()
    init = 'init = safetensors("theirs.safetensors", names = "names.map")'
    (trained / "mapped.shard").write_text(text.replace("  steps =", f"  {init}\n  steps ="))
    found = []
    for name in ("w", "theirs"):
        shardc(trained, "predict", "mapped.shard", *RANKS, "--weights", f"{name}.safetensors", "--out", f"{name}.npz")
        found.append(np.load(trained / f"{name}.npz")["scores"])
    assert np.array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], expected(trained)["scores"], rtol=1e-4, atol=1e-5)
