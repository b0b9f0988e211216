"""A published run of training -> its sizes, its measured seconds a step, and the program that plans it.

    read(path) -> [Row, ..]     of a file such as published_steps.json
    row.plan(layers) -> Plan    of a model with so many layers: one microbatch, on the ranks of one stage

What a row does not say has the value of the system that was measured:

| field | default | from |
|---|---|---|
| model | gpt | the Megatron papers, vTrain and MPT all train GPTs |
| seq | 2048 | Narayanan et al. 2021, table 1; Korthikanti et al. 2022, table 3; vTrain |
| vocab | 51200 | GPT-2's 50257 tokens, padded to 128 x 8 and on; both Megatron papers say 51,200 |
| kv_heads, ffn | heads, 4 d | the same papers |
| dp, cp, tp, pp, virtual | 1 | not used unless a row says so |
| zero | 0, none | sequence_parallel: false |
| recompute | none | |
| dropout | 0.1; Llama 0 | Megatron-LM's --hidden-dropout and --attention-dropout; Llama has none |
| order | pp dp cp tp | outermost first: Megatron's and DeepSpeed's, tensor parallel ranks are neighbours |
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source

HERE = Path(__file__).parent
STRATEGY = """
strategy published {{
  mesh dp = {dp}, cp = {cp}, one = 1, tp = {tp}
  split batch over dp
  split heads, {grouped}ffn, vocab over tp
  {sequence}
  {zero}
  {attend}
}}
"""
ALLOWED = {"model": ("gpt", "llama"), "recompute": ("none", "selective", "full")}


@dataclass(frozen=True)
class Row:
    """One published step, with `measured` in its `unit`. The fields are those of the file."""

    id: str
    measured: float
    unit: str
    machine: str
    batch: int
    d: int
    heads: int
    layers: int
    micro_batch: int
    model: str = "gpt"
    seq: int = 2048
    vocab: int = 51200
    kv_heads: int = 0
    ffn: int = 0
    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    virtual: int = 1
    zero: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    dropout: float = -1.0
    order: str = "pp dp cp tp"
    fit: bool = False

    @property
    def ranks(self) -> int:
        return self.dp * self.cp * self.tp * self.pp

    @property
    def tied(self) -> bool:
        """Whether the head is the token table."""
        return self.model == "gpt"

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def microbatches(self) -> int:
        return self.batch // (self.dp * self.micro_batch)

    @property
    def mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The axes of all ranks, outermost first, and their sizes."""
        axes = tuple(self.order.split())
        return axes, tuple(getattr(self, axis) for axis in axes)

    def seconds(self, flops: int) -> float:
        """The measured seconds of a step; flops: of the model in a step, of the plan, where the
        pairs that a causal mask hides do not count."""
        device_seconds = flops / self.ranks / 1e12
        match self.unit:
            case "seconds a step":
                return self.measured
            case "milliseconds a step":
                return self.measured / 1000
            case "tokens/s a device":
                return self.tokens / self.ranks / self.measured
            case "TFLOP/s a device, recomputation included":
                return self._hardware_flops() / self.ranks / 1e12 / self.measured
            case "model TFLOP/s a device, attention causal half":
                return device_seconds / self.measured
        raise SystemExit(f"{self.id}: no unit `{self.unit}` is known")

    def _hardware_flops(self) -> float:
        """Narayanan et al. 2021, equation 3: with the forward that is computed again, attention whole."""
        s, n, h = self.seq, self.layers, self.d
        return 96.0 * self.batch * s * n * h * h * (1 + s / (6 * h) + self.vocab / (16 * n * h))

    def plan(self, layers: int) -> Plan:
        """The plan of one microbatch of such a model with fewer layers, on the ranks of a stage."""
        return _plan(dataclasses.replace(self, id="", measured=0.0, unit="", machine="", fit=False, pp=1, virtual=1,
                                         order="", recompute="", batch=0, layers=layers))  # fmt: skip


@cache
def _plan(row: Row) -> Plan:
    path = HERE / "programs" / f"published_{row.model}.shard"
    llama = row.model == "llama"
    strategy = STRATEGY.format(
        dp=row.dp, cp=row.cp, tp=row.tp, grouped="kv_heads, " if llama else "",
        sequence="split seq over (cp, tp?)" if row.sequence_parallel else "split seq over cp\n  split d over one",
        zero=f"zero {row.zero} over (dp, cp)" if row.zero else "", attend="attend evenly" if row.cp > 1 else "",
    )  # fmt: skip
    sizes = {
        "batch": row.micro_batch * row.dp, "seq": row.seq, "vocab": row.vocab, "model.d": row.d,
        "model.heads": row.heads, "model.layers": row.layers, "model.ffn": row.ffn,
        **({"model.kv_heads": row.kv_heads} if llama else {"model.max_len": row.seq, "model.dropout": row.dropout}),
    }  # fmt: skip
    sink = Sink()
    source = Source(path.name, path.read_text() + strategy)
    program = driver.check_source(source, sink, {name: str(size) for name, size in sizes.items()}, "published")
    plan = program and driver.plan_program(program, "published", row.dp * row.cp * row.tp, sink)
    if plan is None:
        raise SystemExit("\n".join([f"{path.name} cannot be planned with {sizes}", *(d.message for d in sink.found)]))
    return plan


def read(path: Path) -> Sequence[Row]:
    """The rows of a file, with the defaults of this page."""
    return [_row(given) for given in json.loads(path.read_text())["rows"]]


def _row(given: dict[str, Any]) -> Row:
    known = {f.name for f in dataclasses.fields(Row)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise SystemExit(f"{given.get('id')}: no field `{unknown[0]}` is known")
    needed = [f.name for f in dataclasses.fields(Row) if f.default is dataclasses.MISSING and f.name not in given]
    if needed:
        raise SystemExit(f"{given.get('id')}: the field `{needed[0]}` is missing")
    row = Row(**given)
    for name, allowed in ALLOWED.items():
        if getattr(row, name) not in allowed:
            raise SystemExit(f"{row.id}: `{name}` is one of {', '.join(allowed)}, not `{getattr(row, name)}`")
    if sorted(row.order.split()) != ["cp", "dp", "pp", "tp"]:
        raise SystemExit(f"{row.id}: `order` has dp, pp, cp and tp, each once, not `{row.order}`")
    if row.batch % (row.dp * row.micro_batch):
        raise SystemExit(f"{row.id}: a batch of {row.batch} is no multiple of dp x micro_batch")
    return dataclasses.replace(
        row, kv_heads=row.kv_heads or row.heads, ffn=row.ffn or 4 * row.d,
        dropout=row.dropout if row.dropout >= 0 else 0.0 if row.model == "llama" else 0.1,
    )  # fmt: skip
