"""The options of `shardc predict --generate` -> prompts and settings, the run, and the texts on the
terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from shardlang.cli import output
from shardlang.cli.options import Finite, There
from shardlang.frozen.records import dataclass
from shardlang.terminal.display import safe

if TYPE_CHECKING:
    from shardlang.runtime.data.dataset import Dataset
    from shardlang.runtime.launch.rank import Work


class Starter(Protocol):
    """Starts ranks with a work and, in place of their own, its data; the exit code."""

    def __call__(self, work: Work, data: Mapping[str, Dataset] | None = None) -> int: ...


Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--generate", is_flag=True, help="Go on with prompts, in place of values of examples."),
    click.option("--prompt", multiple=True, metavar="TEXT", help="A prompt. May be repeated."),
    click.option("--prompts", type=There(), metavar="FILE",
                 help="A prompt on each line."),
    click.option("--tokens", type=click.IntRange(1), metavar="N", help="New tokens. [default: 100]"),
    click.option("--temperature", type=Finite(0.0), metavar="T",
                 help="Draw tokens, by scores divided by T. [default: 0, which takes the likeliest]"),
    click.option("--top-k", type=click.IntRange(1), metavar="K", help="Draw from the K likeliest alone."),
    click.option("--seed", type=int, metavar="N", help="Another seed, other draws. [default: 0]"),
    click.option("--tokenizer", metavar="bytes|numbers|FILE",
                 help="What `shardc tokens` was given. [default: bytes, if the model has 256 tokens]"),
    click.option("--end", multiple=True, metavar="TOKEN", help="A token that ends a text. May be repeated."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """prompts: at least one. tokenizer: as written, "" where it is not."""

    prompts: tuple[str, ...]
    count: int
    temperature: float
    top_k: int
    seed: int
    tokenizer: str
    ends: tuple[str, ...]


def options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked(generate: bool, given: Mapping[str, Any]) -> Sampling | None:
    """The settings that the options give; None without --generate. UsageError where they do not go
    together."""
    set_ = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, ())]
    if not generate:
        if set_:
            raise click.UsageError(f"{set_[0]} is for generating text: give --generate too")
        return None
    drawn = [name for name in set_ if name in ("--top-k", "--seed")]
    if drawn and not given["temperature"]:
        raise click.UsageError(f"without --temperature the likeliest token is taken, and {drawn[0]} changes nothing")
    prompts = (*given["prompt"], *_lines(given["prompts"]))
    if not prompts:
        raise click.UsageError("nothing says what to go on with: give --prompt TEXT or --prompts FILE")
    return Sampling(
        prompts, given["tokens"] or 100, given["temperature"] or 0.0, given["top_k"] or 0, given["seed"] or 0,
        given["tokenizer"] or "", given["end"],
    )  # fmt: skip


def _lines(file: Path | None) -> list[str]:
    """The lines of a file that are not blank."""
    if file is None:
        return []
    try:
        return [line for line in file.read_text("utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.UsageError(f"the prompts `{file}` cannot be read: {why}") from None


def tokenizer_for(asked: Sampling, vocab: int) -> str:
    """The tokenizer; UsageError where neither the command nor the model says it."""
    if not asked.tokenizer and vocab != 256:
        fact = f"the model has {vocab:,} tokens, and nothing says what they are"
        raise click.UsageError(f"{fact}: give --tokenizer FILE, a tokenizer.json (or bytes, or numbers)")
    return asked.tokenizer or "bytes"


def generate(
    asked: Sampling, field: tuple[str, int], started: Starter, to: Path, checkpoint: Path | None, ema: bool, shown: bool
) -> int:
    """Runs the ranks; the exit code. field: that of the tokens, and how many the model has. to:
    where the lines are written. shown: they are printed as texts."""
    from shardlang.runtime.predict.generate import Drawing, Generate, Nothing
    from shardlang.runtime.predict.texts import Texts

    tokens, vocab = field
    texts = Texts(tokenizer_for(asked, vocab), vocab)
    for prompt in asked.prompts:
        texts.numbers(prompt)  # a wrong one is told before the ranks start
    ends = frozenset(texts.end(end) for end in asked.ends)
    drawing = Drawing(asked.temperature, asked.top_k, asked.seed)
    work = Generate(
        to, texts, asked.prompts, tokens=tokens, count=asked.count, drawing=drawing, ends=ends, checkpoint=checkpoint,
        ema=ema,
    )  # fmt: skip
    code = started(work, {"data": Nothing(), "eval": Nothing()})
    if code == 0 and shown:
        _show(to)
    elif code == 0:
        output.tell(f"wrote {to}: {len(asked.prompts)} text{'s' * (len(asked.prompts) != 1)}")
    return code


def _show(file: Path) -> None:
    """Prints each prompt and what was made of it, with a line between."""
    for number, line in enumerate(file.read_text("utf-8").splitlines()):
        told = json.loads(line)
        if number:
            output.tell("---")
        output.write(f"{safe(told['prompt'] + told['text'])}\n", sys.stdout)
