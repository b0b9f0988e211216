"""The nets of the scripts in the sizes of their claims, or tiny ones: as programs, and by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from by_hand import gpt2, llama
from by_hand.training import Training, mean_over_ranks, parts
from by_hand.wide_deep import sent
from emitted import emitted, leaves, on_hand, planned, training
from torch import nn

from benchmarks.gpu.place import Place
from shardlang.folds.flops import step_flops
from shardlang.runtime import compiled
from shardlang.runtime.comm.mesh import world

PROGRAMS = Path(__file__).parent.parent / "programs"
TINY = {
    "batch": "2", "seq": "16", "vocab": "64", "model.d": "32", "model.heads": "2", "model.layers": "2",
}  # fmt: skip
# Llama 3 8B, but 4 layers of its 32: all of them, with their optimizer, are more than a GPU holds.
LLAMA = {
    "batch": "1", "seq": "8192", "vocab": "128256", "model.d": "4096", "model.heads": "32", "model.layers": "4",
    "model.kv_heads": "8", "model.ffn": "14336",
}  # fmt: skip
# GPT-2 of 124 million parameters.
GPT2 = {
    "batch": "16", "seq": "1024", "vocab": "50257", "model.d": "768", "model.heads": "12", "model.layers": "12",
    "model.max_len": "1024",
}  # fmt: skip
Turn = Callable[[], Sequence[float]]


@dataclass
class Net:
    """A program of benchmarks/programs in the sizes of `settings`, and the same by hand. epochs: of a turn.

    What both begin with is made with the net, once: ranks are forked later, a process for each side.
    """

    name: str
    settings: Mapping[str, str]
    place: Place
    precision: str = "bf16"
    strategy: str | None = None
    ranks: int = 1
    epochs: int = 5

    def __post_init__(self) -> None:
        file, given = PROGRAMS / f"{self.name}.shard", {**self.settings, "train.precision": self.precision}
        self.plan = planned(file, self.strategy, self.ranks, given)
        self.program = emitted(file, self.strategy, self.ranks, given)
        self.data, self.whole = on_hand(self.program)
        self.plain = emitted(file, None, 1, self.settings)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.whole["tokens"].numel() // 2

    @property
    def steps(self) -> int:
        """Steps of a turn."""
        return 2 * self.epochs

    def ours(self, compile: bool) -> Turn:
        """A turn of the emitted program, on a rank that is connected."""
        self.program.compile = "blocks" if compile else "none"
        compiled.Compiling.backend = self.place.compiler
        return training(self.program, self.data, self.epochs)

    def by_hand(self, compile: bool, spread: Callable[[Any], nn.Module] = lambda net: net) -> Turn:
        """The same by hand, each block compiled by itself; `bf16` is autocast. spread: puts the net on several ranks,
        and gives it any other precision.
        """
        net = self._begun()
        for at, block in enumerate(net.blocks if compile else ()):
            # As another module, whose hooks (those of fully_shard) are not compiled.
            net.blocks[at] = torch.compile(block, fullgraph=True, dynamic=False, backend=self.place.compiler)
        run = gpt2.training(spread(net))
        low = autocast(run.net) if self.precision == "bf16" else run.net
        run = Training(low, run.optimizer, lambda scores, label, loss=run.loss: loss(scores.float(), label))
        batch, fields = self.program.data.batch, (self.whole["tokens"], self.whole["label"])
        mine = parts(*fields, batch, world.rank, self.ranks) * self.epochs

        def turn() -> Sequence[float]:
            losses = run.steps((sent(x, world.device), sent(label, world.device)) for x, label in mine)
            return mean_over_ranks(losses) if self.ranks > 1 else losses.tolist()

        return turn

    def _begun(self) -> Any:
        weights, heads = leaves(self.plain), int(self.settings["model.heads"])
        with world.device:
            if self.name == "gpt2":
                return gpt2.begun(weights, heads, float(self.settings.get("model.dropout", 0)))
            return llama.begun(weights, heads, int(self.settings["seq"]))

    def speed(self, seconds: float) -> str:
        """Tokens a second and MFU of a turn that took so long."""
        each = seconds / self.steps
        peak = self.place.peak() * self.ranks
        share = f"MFU {step_flops(self.plan.graph) / each / peak:.3f}" if peak else "MFU unknown"
        return f"{self.tokens / each:,.0f} tokens/s, {share}"


def llama_8b(place: Place, **further: Any) -> Net:
    tiny = {**TINY, "model.kv_heads": "1", "model.ffn": "64"}
    return _net("llama", LLAMA if place.whole else tiny, place, **further)


def gpt2_124m(place: Place, dropout: float = 0.0, **further: Any) -> Net:
    sizes = GPT2 if place.whole else {**TINY, "model.max_len": "16"}
    return _net("gpt2", {**sizes, "model.dropout": str(dropout)}, place, **further)


def _net(name: str, settings: Mapping[str, str], place: Place, **further: Any) -> Net:
    return Net(name, settings, place, **{"epochs": 5 if place.whole else 1, **further})


def autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under torch.autocast to bf16."""

    def run(*given: Any) -> Any:
        with torch.autocast(world.device.type, torch.bfloat16):
            return function(*given)

    return run
