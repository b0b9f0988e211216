"""`shardc predict --generate`: the tokens are those of the transformers library, on any ranks under any strategy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shardlang.cli.main import run
from shardlang.runtime.predict.generate import Drawing
from shardlang.runtime.predict.texts import Texts
from tests import warm
from tests.cli.process import SHARDC
from tests.models.planned import HERE

PROMPTS = ["3", "7 1 4", "40 2 9 11 5", "1 1 2", "47", "6 6"]
PIPELINE = """strategy stages {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp balanced
  microbatches 2
  schedule "1f1b"
}

train {"""
WAYS = [("dp", 1), ("dp", 4), ("mp", 2), ("cp", 2), ("sp", 2), ("mixed", 4), ("stages", 2), ("stages", 4)]


def shardc(folder: Path, *words: str) -> str:
    done = warm.run([*SHARDC, *words], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def generated(folder: Path, program: str, strategy: str, ranks: int, *words: str) -> list[list[int]]:
    """The new tokens after each prompt: of six, in batches of four."""
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    way = ["--ranks", str(ranks), "--strategy", strategy, "--set", "batch=4"]
    shardc(
        folder, "predict", program, *way, "--generate", *prompts, "--tokenizer", "numbers", "--out", "o.jsonl", *words
    )
    lines = [json.loads(line) for line in (folder / "o.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == PROMPTS
    assert all(line["text"] == "".join(f" {n}" for n in line["tokens"]) for line in lines)
    return [line["tokens"] for line in lines]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, object]:
    """A name, a folder with the program and weights of the transformers library, and its model."""
    pytest.importorskip("transformers", reason="the package transformers (extra `oracle`) is not installed")
    from tests.models.test_oracle import theirs_of, write

    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    model = theirs_of(name).eval()
    write(model, folder)
    text = (HERE / f"{name}.shard").read_text().replace("train {", PIPELINE)
    init = f'  init = safetensors("w.safetensors", names = "std.{name}")\n  steps ='
    (folder / "net.shard").write_text(text.replace("  steps =", init))
    return name, folder, model


@cache
def greedy(model: Any) -> list[list[int]]:
    """Nine tokens of their model after each prompt."""
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([[int(word) for word in prompt.split()]])
        theirs = model.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
        found.append(theirs[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), WAYS)
def test_greedy_tokens_are_those_of_transformers(
    strategy: str, ranks: int, models: tuple[str, Path, object]
) -> None:  # fmt: skip
    """Prompts of several lengths, more of them than a batch has."""
    _, folder, model = models
    assert generated(folder, "net.shard", strategy, ranks, "--tokens", "9") == greedy(model)


@pytest.mark.slow
def test_a_text_longer_than_the_window(models: tuple[str, Path, object]) -> None:
    """A loop by hand that gives the model the last 16 tokens."""
    _, folder, model = models
    found = generated(folder, "net.shard", "mixed", 4, "--tokens", "18")
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        ids = [int(word) for word in prompt.split()]
        begun = len(ids)
        with torch.no_grad():
            for _ in range(18):
                ids.append(int(model(torch.tensor([ids[-16:]])).logits[0, -1].argmax()))  # type: ignore[operator]
        assert tokens == ids[begun:]


@pytest.mark.slow
def test_drawn_tokens_are_the_same_on_any_ranks(models: tuple[str, Path, object]) -> None:
    """And under another seed others; with one token to draw from, the likeliest."""
    _, folder, _ = models
    drawn = ["--tokens", "12", "--temperature", "1.5", "--top-k", "20"]
    one = generated(folder, "net.shard", "dp", 1, *drawn)
    assert one == generated(folder, "net.shard", "mixed", 4, *drawn)
    assert one == generated(folder, "net.shard", "stages", 2, *drawn)
    assert one != generated(folder, "net.shard", "dp", 1, *drawn, "--seed", "1")
    single = generated(folder, "net.shard", "dp", 1, "--tokens", "12", "--temperature", "1.5", "--top-k", "1")
    assert single == generated(folder, "net.shard", "dp", 1, "--tokens", "12")


@pytest.mark.slow
def test_an_end_token_ends_a_text(models: tuple[str, Path, object]) -> None:
    _, folder, _ = models
    whole = generated(folder, "net.shard", "dp", 1, "--tokens", "9")
    end = whole[0][4]
    shardc(
        folder, "predict", "net.shard", "--ranks", "2", "--generate", "--prompt", PROMPTS[0], "--tokens", "9", "--end",
        str(end), "--tokenizer", "numbers", "--out", "e.jsonl", "--strategy", "dp",
    )  # fmt: skip
    line = json.loads((folder / "e.jsonl").read_text())
    cut = whole[0][: whole[0].index(end)]
    assert line["tokens"] == [*cut, end] and line["ended"] and line["text"] == "".join(f" {n}" for n in cut)


def test_draws_have_the_shares_of_softmax() -> None:
    """Of 4,000 draws, within four deviations; and none outside of the likeliest k."""
    scores = np.log(np.array([0.5, 0.1, 0.3, 0.1]))
    found = np.bincount([Drawing(1.0, 0, 5).token(scores, 3, n) for n in range(4000)], minlength=4) / 4000
    assert np.abs(found - np.exp(scores)).max() < 4 * 0.5 / 4000**0.5
    sharp = np.bincount([Drawing(0.5, 2, 5).token(scores, 3, n) for n in range(4000)], minlength=4) / 4000
    expected = np.array([0.25, 0.0, 0.09, 0.0]) / 0.34
    assert np.abs(sharp - expected).max() < 4 * 0.5 / 4000**0.5 and sharp[1] == sharp[3] == 0


def test_a_token_behind_a_text_of_bytes() -> None:
    """A character of two bytes, of which the second is made."""
    texts = Texts("bytes", 256)
    assert texts.numbers("é\n") == [0xC3, 0xA9, 10]
    assert texts.after([97, 0xC3], [0xA9]) == "é"
    assert texts.end("\n") == 10


SMALL = """dim batch = 4, seq = 8, vocab = 256, d = 8

model Net {
  param table: [vocab, d] = normal(0.5)

  forward(tokens: i64[batch, seq]) -> [batch, seq, vocab] {
    x = embedding(tokens, table)
    BODY
    return einsum(h, table -> [batch, seq, vocab])
  }
}

train {
  model = Net()
  data = random(tokens: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab)
  scores = model(tokens)
  loss = cross_entropy(scores, label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def small(folder: Path, body: str, **changed: str) -> list[str]:
    """The words of a command about a program that is written with its weights."""
    text = SMALL.replace("BODY", body)
    for old, new in changed.values():
        text = text.replace(old, new)
    (folder / "net.shard").write_text(text)
    table = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    save_file({"table": table}, folder / "w.safetensors")
    return ["predict", "net.shard", "--ranks", "1", "--weights", "w.safetensors", "--generate"]


def test_text_on_the_terminal(tmp_path: Path) -> None:
    """A prompt and what follows it, with a line between two; nothing is left in a folder."""
    words = small(tmp_path, "h = cumsum(x, over = seq)")
    said = shardc(
        tmp_path, *words, "--prompt", "ab", "--prompt", "Q", "--tokens", "3", "--top-k", "9", "--temperature", "2"
    )
    assert "ab" in said and "\n---\nQ" in said


def test_a_model_that_sees_what_follows_is_refused(tmp_path: Path) -> None:
    words = small(tmp_path, "h = x + rearrange(mean(x, over = seq) -> [batch, 1, d])")
    done = warm.run([*SHARDC, *words, "--prompt", "ab"], cwd=tmp_path)
    assert done.returncode == 3 and "error[SH518]: the scores after 2 tokens change with the tokens that" in done.stderr


MISTAKES = [
    ([], "nothing says what to go on with: give --prompt TEXT or --prompts FILE"),
    (["--prompt", "a", "--top-k", "3"], "without --temperature the likeliest token is taken, and --top-k changes"),
    (
        ["--prompts", "no.txt"],
        "Invalid value for '--prompts': `no.txt` does not exist; paths in a command are relative",
    ),
    (["--prompt", "a", "--set", "vocab=300"], "the model has 300 tokens, and nothing says what they are: give"),
    (["--prompt", ""], "error[SH518]: the prompt '' has no token"),
    (["--prompt", "a", "--end", "ab"], "error[SH518]: the end 'ab' is 2 tokens, and one token ends a text"),
    (["--prompt", "7 999", "--tokenizer", "numbers"], "the prompt has '999', and a token is a number from 0 to 255"),
    (["--prompt", "a", "--set", "vocab=99", "--tokenizer", "bytes"], "`bytes` has 256 tokens, and the model has 99"),
    (["--prompt", "a", "--value", "x"], "error[SH518]: `x` has scores of 8 tokens, and `tokens` is numbers below 256"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes(words: list[str], said: str, tmp_path: Path) -> None:
    done = warm.run([*SHARDC, *small(tmp_path, "h = cumsum(x, over = seq)"), *words], cwd=tmp_path)
    assert done.returncode and said in done.stderr, done.stderr


def test_a_model_of_two_fields_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ("tokens: i64[batch, seq])", "tokens: i64[batch, seq], weights: [batch, seq])")
    field = ("label: i64[batch, seq] < vocab)", "label: i64[batch, seq] < vocab, weights: [batch, seq])")
    call = ("model(tokens)", "model(tokens, weights)")
    body = "h = einsum(x, weights -> [batch, seq, d])"
    words = small(tmp_path, body, signature=two, field=field, call=call)
    words[1], words[5] = str(tmp_path / "net.shard"), str(tmp_path / "w.safetensors")
    assert run([*words, "--prompt", "a"]) == 1
    said = capsys.readouterr().err
    assert "error[SH518]: `scores` is made of `tokens` (i64[batch, seq]) and `weights` (f32[batch, seq]); to" in said


def test_generating_needs_to_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = small(tmp_path, "h = cumsum(x, over = seq)")
    words[1], words[5] = str(tmp_path / "net.shard"), str(tmp_path / "w.safetensors")
    assert run([*words[:-1], "--prompt", "a", "--out", str(tmp_path / "o.npz")]) == 2
    assert "--prompt is for generating text: give --generate too" in capsys.readouterr().err
