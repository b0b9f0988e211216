"""Prompts, as token numbers -> what a language model goes on with, a token at a time.

Shapes are fixed, so each pass computes a whole window of the model's `seq`. A prompt stands at its
beginning, and what stands behind it must change nothing. That is tried with the prompts at hand:
the first pass runs twice, with other numbers behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardlang.disk.locks import drafted
from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import microbatches, world
from shardlang.runtime.comm.primitives import put_together
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.drawn import bits
from shardlang.runtime.data.loader import Cut
from shardlang.runtime.logs import Log
from shardlang.runtime.predict.examples import counts, trained
from shardlang.runtime.predict.texts import Texts
from shardlang.runtime.program import Extent, RunProgram, SourceField, dtype_of, numbers_of
from shardlang.runtime.random import seeded_key
from shardlang.runtime.step.train import TrainingRun


@dataclass(frozen=True)
class Drawing:
    """How a token is chosen from its scores. temperature: the scores are divided by it; 0: the
    highest is taken, of equal ones the first. top_k: how many of the highest may be drawn; 0:
    all."""

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def token(self, scores: np.ndarray, prompt: int, position: int) -> int:
        """The token for scores, float64 [vocab]. It is drawn by one random number, a function of
        the seed, the number of the prompt and the position behind it alone."""
        if not self.temperature:
            return int(scores.argmax())
        allowed = np.arange(len(scores))
        if 0 < self.top_k < len(scores):
            allowed = np.sort(np.argsort(-scores, kind="stable")[: self.top_k])
        # Of differences: however low the temperature is, the highest stays finite.
        below = scores[allowed] - scores[allowed].max()
        with np.errstate(over="ignore"):
            shares = np.cumsum(np.exp(below / self.temperature))
        drawn = float(_draw(self.seed, f"generate[{prompt}]", position, 1)[0] >> np.uint64(11)) * 2.0**-53
        return int(allowed[np.searchsorted(shares, drawn * shares[-1], side="right")])


def _draw(seed: int, path: str, step: int, count: int) -> np.ndarray:
    """uint64 [count]: random bits."""
    return bits(seeded_key(seed, path, 0, step), np.arange(count))


class Nothing:
    """The data of a program that generates: none is read."""

    notes: Sequence[str] = ()
    length = 0

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        return np.zeros((len(examples), *block.shape[1:]))


@dataclass
class Completion:
    """A prompt, and the tokens that it has got."""

    number: int
    prompt: list[int]
    made: list[int] = field(default_factory=list)
    ended: bool = False


class Passes:
    """The scores of next tokens for a batch of windows."""

    def __init__(self, run: TrainingRun, tokens: str) -> None:
        program = run.program
        assert program.eval is not None
        self.program, self.run = program, run
        self.cut = Cut(program, program.eval)
        self.scores = program.predicted[0]
        self.tokens = next(each for each in program.eval.fields if each.name == tokens)
        self.batch, self.seq = self.tokens.shape

    def next(self, windows: np.ndarray, at: np.ndarray) -> Tensor:
        """[batch, vocab]: the scores at position `at[i]` of window i, the same on every rank.
        windows: int64 [batch, seq]."""

        def take(field: SourceField, block: Extent) -> Tensor:
            if field.name == self.tokens.name:
                return torch.from_numpy(np.ascontiguousarray(windows[block.slices()]))
            return torch.zeros(block.shape)

        with torch.no_grad(), record.during("evaluating"):
            values = self.run.passes.evaluate(self.cut.taken(take), self.batch)
            return put_together(self._mine(values.get(self.scores.name, ()), at)).cpu()

    def _mine(self, blocks: Sequence[Tensor] | Tensor, at: np.ndarray) -> Tensor:
        """The scores that this rank has, and zeros elsewhere."""
        kind = dtype_of(self.program, self.scores)
        found = torch.zeros((self.batch, self.scores.shape[2]), dtype=kind, device=world.device)
        if len(blocks) and counts(self.program, self.scores):
            for number in microbatches(len(blocks)):
                block = self.program.block(self.scores)
                rows = np.arange(block.offsets[0], block.offsets[0] + block.shape[0])
                places = at[rows] - block.offsets[1]
                here = np.flatnonzero((places >= 0) & (places < block.shape[1]))
                mine, where = torch.from_numpy(here), torch.from_numpy(places[here])
                of = blocks[number]
                found[torch.from_numpy(rows[here]), block.slices()[2]] = of[mine.to(of.device), where.to(of.device)]
        return found


@dataclass(frozen=True)
class Generate:
    """The work of a rank: goes on with prompts, and writes what comes to `out`, a JSON line for
    each prompt. tokens: the field that takes them; count: how many new ones; ends: tokens of which
    one ends a text."""

    out: Path
    texts: Texts
    prompts: Sequence[str]
    tokens: str
    count: int
    drawing: Drawing
    ends: frozenset[int]
    checkpoint: Path | None
    ema: bool = False

    def __call__(self, program: RunProgram, data: Mapping[str, Dataset], log: Log, save_weights: Path | None) -> None:
        run = trained(program, data, log, self.checkpoint, self.ema)
        passes = Passes(run, self.tokens)
        lines = [Completion(number, self.texts.numbers(text)) for number, text in enumerate(self.prompts)]
        over = [line for line in lines if len(line.prompt) + self.count > passes.seq + 1]
        if over:
            fact = f"the model sees {passes.seq} tokens at a time: the first ones of a longer text go out of its sight"
            log.note(f"{fact} ({len(over)} of {len(lines)} prompts)")
        if log.live is not None:
            log.live.rest()
        with numbers_of(program):
            for first in range(0, len(lines), passes.batch):
                self._group(passes, lines[first : first + passes.batch], log)
        log.end()
        if world.rank == 0:
            with drafted(self.out, "what is generated") as file:
                file.writelines(f"{json.dumps(self._told(line))}\n".encode() for line in lines)

    def _group(self, passes: Passes, lines: Sequence[Completion], log: Log) -> None:
        """Goes on with as many prompts as a batch has, each until it ends."""
        for position in range(self.count):
            filled = [(line.prompt + line.made)[-passes.seq :] for line in lines]
            filled += filled[:1] * (passes.batch - len(filled))
            windows, at = np.zeros((passes.batch, passes.seq), np.int64), np.empty(passes.batch, np.int64)
            for row, tokens in enumerate(filled):
                windows[row, : len(tokens)], at[row] = tokens, len(tokens) - 1
            scores = passes.next(windows, at)
            if not position:
                self._try(passes, windows, at, scores)
            self._choose(lines, scores, position)
            if all(line.ended for line in lines):
                return
            if log.live is not None and log.live.due:
                log.live(f"token {position + 1} of {self.count}")

    def _try(self, passes: Passes, windows: np.ndarray, at: np.ndarray, scores: Tensor) -> None:
        """RunError where other tokens behind the prompts change the scores."""
        behind = np.arange(passes.seq) > at[:, None]
        if not behind.any():
            return
        drawn = _draw(self.drawing.seed, "generate.behind", 0, windows.size).reshape(windows.shape)
        other = (drawn % np.uint64(self.texts.vocab)).astype(np.int64)
        again = passes.next(np.where(behind, other, windows), at)
        if not torch.equal(scores.nan_to_num(), again.nan_to_num()):
            row = int((scores.nan_to_num() != again.nan_to_num()).any(1).nonzero()[0])
            fact = f"the scores after {at[row] + 1} tokens change with the tokens that follow"
            help = "the model must be causal: `attention(.., causal = true)`, and nothing else over the whole of `seq`"
            raise RunError("SH518", f"{fact}, so the model cannot generate", help=help)

    def _choose(self, lines: Sequence[Completion], scores: Tensor, position: int) -> None:
        """The next token of each text. The first rank chooses, and all get it."""
        chosen = torch.zeros(len(lines), dtype=torch.int64, device=world.device)
        if world.rank == 0:
            known = scores[: len(lines), : self.texts.vocab].double().numpy()
            for row, line in enumerate(lines):
                if not np.isfinite(highest := known[row].max()):
                    fact = f"the highest score of token {position + 1} after prompt {line.number + 1} is {highest}"
                    raise RunError("SH506", fact, help="look for numbers in the weights that are not finite")
                chosen[row] = self.drawing.token(known[row], line.number, position)
        for line, token in zip(lines, put_together(chosen).tolist(), strict=True):
            if not line.ended:
                line.made.append(token)
                line.ended = token in self.ends

    def _told(self, line: Completion) -> dict[str, Any]:
        """A text as it is written: without the token that ends it."""
        made = line.made[:-1] if line.ended else line.made
        text = self.texts.after(line.prompt, made)
        return {
            "generated_by": "shardlang", "prompt": self.prompts[line.number], "text": text,
            "prompt_tokens": line.prompt, "tokens": line.made, "ended": line.ended,
        }  # fmt: skip
