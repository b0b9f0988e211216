"""`shardc predict --generate` by a tokenizer.json, of an imported module, from a checkpoint and from the averages of
its weights: the tokens are those of a loop by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from shardlang.errors import RunError
from shardlang.runtime.data import token_files
from shardlang.runtime.data.token_files import FromFile
from shardlang.runtime.predict.generate import Drawing
from shardlang.runtime.predict.texts import Texts
from tests import warm
from tests.cli.process import SHARDC
from tests.cli.test_generate import SMALL

tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
TEXT = "The quick brown fox jumps over the lazy dog.\nÜber den Fluß, 猫が座る — naïve café!\n" * 20
END = "<|end|>"
STRATEGY = """strategy dp {
  mesh dp = auto
  split batch over dp
}
"""


def shardc(folder: Path, *words: str) -> str:
    done = warm.run([*SHARDC, *words], cwd=folder)
    assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stdout + done.stderr
    return done.stdout


def of_bytes(folder: Path) -> Any:
    """A tokenizer of pieces of words in bytes, as GPT-2's, with a special token."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.save(str(folder / "tokenizer.json"))
    return made


def of_pieces(folder: Path) -> Any:
    """A tokenizer whose blanks are a letter before a word, as Llama's."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", END], show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    made.save(str(folder / "tokenizer.json"))
    return made


def bigrams(vocab: int) -> torch.Tensor:
    return torch.randn(vocab, 8, generator=torch.Generator().manual_seed(1))


def written(folder: Path, vocab: int, settings: str = "  optimizer = sgd(lr = 0.1)\n  steps = 1\n") -> None:
    """A program of so many tokens, whose next token depends on the last one, and its weights."""
    text = SMALL.replace("BODY", "h = x").replace("vocab = 256", f"vocab = {vocab}")
    text = text[: text.index("  optimizer =")] + settings + "}\n"
    (folder / "net.shard").write_text(text.replace("train {", f"{STRATEGY}\ntrain {{"))
    save_file({"table": bigrams(vocab)}, folder / "w.safetensors")


def greedy(table: np.ndarray, tokens: list[int], count: int) -> list[int]:
    """What follows, by the likeliest."""
    found = list(tokens)
    for _ in range(count):
        found.append(int((table @ table[found[-1]]).argmax()))
    return found[len(tokens) :]


def generated(folder: Path, *words: str) -> list[dict[str, Any]]:
    shardc(folder, "predict", "net.shard", "--generate", "--out", "o.jsonl", *words)
    return [json.loads(line) for line in (folder / "o.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("made", [of_bytes, of_pieces])
@pytest.mark.parametrize("ranks", [1, 2])
def test_prompts_and_texts_are_those_of_the_tokenizer(made: Any, ranks: int, tmp_path: Path) -> None:
    theirs = made(tmp_path)
    written(tmp_path, theirs.get_vocab_size())
    prompts = ["The quick", "naïve café — 猫", f"dog.{END}", " lazy "]
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    words = ["--ranks", str(ranks), "--weights", "w.safetensors", "--tokenizer", "tokenizer.json", "--tokens", "12"]
    for prompt, line in zip(prompts, generated(tmp_path, *words, *given), strict=True):
        ids = theirs.encode(prompt, add_special_tokens=False).ids
        assert line["prompt_tokens"] == ids
        assert line["tokens"] == greedy(bigrams(theirs.get_vocab_size()).numpy(), ids, 12)
        before, whole = (theirs.decode(each, skip_special_tokens=False) for each in (ids, ids + line["tokens"]))
        assert before + line["text"] == whole


def test_a_special_token_ends_a_text(tmp_path: Path) -> None:
    theirs = of_bytes(tmp_path)
    written(tmp_path, theirs.get_vocab_size())
    table = bigrams(theirs.get_vocab_size()).numpy()
    end = theirs.token_to_id(END)
    table[end] = 9 * table[theirs.encode("dog").ids[-1]]  # the likeliest behind that one
    save_file({"table": torch.from_numpy(table)}, tmp_path / "w.safetensors")
    words = ["--ranks", "1", "--weights", "w.safetensors", "--tokenizer", "tokenizer.json", "--prompt", "The dog"]
    (line,) = generated(tmp_path, *words, "--end", END)
    assert line["tokens"] == [end] and line["ended"] and line["text"] == ""
    (line,) = generated(tmp_path, *words, "--tokens", "3")
    assert line["tokens"][0] == end and line["text"].startswith(END) and not line["ended"]


def numbered(folder: Path, **ids: int) -> Path:
    """A tokenizer of words with these numbers."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=next(iter(ids))))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_numbers_of_tokens_may_have_gaps(tmp_path: Path) -> None:
    """As many as the greatest number says are there; a file has room for it."""
    path = numbered(tmp_path, a=0, b=70_000)
    assert FromFile(path).vocab == 70_001
    with pytest.raises(RunError, match="has 70,001 tokens, and the model has 3"):
        Texts(str(path), 3)
    (tmp_path / "t.txt").write_text("a b a")
    token_files.write([tmp_path / "t.txt"], tmp_path / "t.bin", FromFile(path))
    assert token_files.mapped(tmp_path / "t.bin", None).tolist() == [0, 70_000, 0]


LETTERS = "abcdefghijklmnopqrstuvwxyz"
TRAINED = """  optimizer = sgd(lr = 5.0)
  ema = 0.5
  checkpoint = every(3, to = "kept")
  steps = 6
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_and_the_averages_of_its_weights(ranks: int, tmp_path: Path) -> None:
    written(tmp_path, 256, TRAINED)
    shardc(tmp_path, "run", "net.shard", "--ranks", str(ranks))
    prompts = [word for letter in LETTERS for word in ("--prompt", letter)]
    found = []
    for step, given, more in ((6, "kept", ()), (6, "kept", ("--ema",)), (3, "kept/step-3", ())):
        shardc(tmp_path, "convert", f"kept/step-{step}", "--to", "safetensors", "-o", "c.safetensors", *more)
        table = load_file(tmp_path / "c.safetensors")["table"]
        (tmp_path / "c.safetensors").unlink()
        lines = generated(tmp_path, "--ranks", str(ranks), "--checkpoint", given, *prompts, "--tokens", "4", *more)
        assert [line["tokens"] for line in lines] == [greedy(table, [ord(letter)], 4) for letter in LETTERS]
        found.append([line["tokens"] for line in lines])
    assert found[0] != found[1] and found[0] != found[2]


MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.head = nn.Linear(16, 300)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens).cumsum(1)))


def build():
    torch.manual_seed(3)
    return Net(), {"tokens": torch.randint(0, 300, (2, 12))}
"""
IMPORTED = """
dim batch = 4, seq = 12

strategy dp {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = random(tokens: i64[batch, seq] < 300, label: i64[batch, seq] < 300)
  loss = cross_entropy(model(tokens), label)
  optimizer = sgd(lr = 0.1)
  init = safetensors("net.safetensors", names = "net.map")
  checkpoint = every(1, to = "kept")
  steps = 1
}
"""


@pytest.mark.slow
def test_an_imported_module_goes_on_as_it_does_in_torch(tmp_path: Path) -> None:
    """From its own weights, and from a checkpoint of a run."""
    theirs = of_bytes(tmp_path)
    (tmp_path / "module.py").write_text(MODULE)
    shardc(
        tmp_path, "import", "module.py:build", "-o", "net.shard", "--weights", "net.safetensors", "--accept", "SH608"
    )
    (tmp_path / "net.shard").write_text((tmp_path / "net.shard").read_text() + IMPORTED)
    module: dict[str, Any] = {}
    exec(MODULE, module)
    net, _ = module["build"]()
    ids = theirs.encode("The quick").ids
    words = ["--ranks", "2", "--tokenizer", "tokenizer.json", "--prompt", "The quick", "--tokens", "5"]
    for source in ((), ("--checkpoint", "kept")):
        if source:
            shardc(tmp_path, "run", "net.shard", "--ranks", "1", "--save-weights", "w.safetensors")
            after = load_file(tmp_path / "w.safetensors")
            net.load_state_dict({name: torch.from_numpy(each) for name, each in after.items()})
        found = list(ids)
        with torch.no_grad():
            for _ in range(5):
                found.append(int(net(torch.tensor([found]))[0, -1].argmax()))
        (line,) = generated(tmp_path, *words, *source)
        assert line["prompt_tokens"] == ids and line["tokens"] == found[len(ids) :]


def test_the_lengths_of_a_tokenizer_file_neither_cut_nor_fill_up_tokens(tmp_path: Path) -> None:
    made = of_bytes(tmp_path)
    due = [number for line in TEXT.splitlines(keepends=True) for number in made.encode(line).ids]
    made.enable_truncation(3)
    made.enable_padding(pad_id=0, length=40)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.txt").write_text(TEXT, "utf-8")
    count = token_files.write([tmp_path / "t.txt"], tmp_path / "t.bin", FromFile(tmp_path / "tokenizer.json"))
    assert count == len(due) and token_files.mapped(tmp_path / "t.bin", None).tolist() == due


@pytest.mark.parametrize(
    ("tokenizer", "end", "told"),
    [
        ("bytes", "", "the text of --end '' has no token"),
        ("bytes", "xy", "the end 'xy' is 2 tokens"),
        ("numbers", "dog", "the text of --end has 'dog', and a token is a number from 0 to 255"),
    ],
)
def test_an_end_that_is_no_token_is_told_by_its_name(tokenizer: str, end: str, told: str) -> None:
    with pytest.raises(RunError, match=told) as refused:
        Texts(tokenizer, 256).end(end)
    assert "prompt" not in str(refused.value)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 0.1, 1e308])
def test_a_token_is_drawn_at_every_temperature(temperature: float) -> None:
    scores = np.array([-np.inf, 1.0, 3.0, -2.0])
    drawn = {Drawing(temperature, seed=seed).token(scores, 0, 0) for seed in range(50)}
    assert drawn == ({2} if temperature < 1 else {1, 2, 3})
