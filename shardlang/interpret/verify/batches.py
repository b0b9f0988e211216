"""The batches that ranks and one device are both given: a program's own data, or numbers drawn in
its place.

Ranks read their parts of a batch as they do in every run; here the same batches are made whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from shardlang.graph.graph import Graph
from shardlang.interpret.meaning import initial
from shardlang.interpret.meaning.call import ELEMENTS
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.loader import Batch, Loader
from shardlang.runtime.program import BatchSource, Extent, RunProgram, SourceField
from shardlang.runtime.step.train import datasets


@dataclass
class RandomBatches:
    """A dataset of random batches, `steps` of them, one after the other: see initial.batch."""

    graph: Graph
    names: Mapping[str, int]
    seed: int
    batch: int
    steps: int
    notes: Sequence[str] = ()
    made: dict[int, Mapping[int, Tensor]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.batch * self.steps

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        if not len(examples):
            return np.zeros(block.shape)
        step = int(examples[0]) // self.batch + 1
        if step not in self.made:
            self.made = {step: initial.batch(self.graph, self.seed, step)}
        whole = self.made[step][self.names[field.name]].numpy()
        taken: np.ndarray = whole[(examples % self.batch, *block.slices()[1:])]
        return taken


@dataclass
class Batches:
    """`program` and `data` are what ranks are started with; `of` gives the whole batch of a step.

    drawn: why the numbers are random, or empty where they are the program's own. total: steps of a
    whole run."""

    program: RunProgram
    data: Mapping[str, Dataset]
    graph: Graph
    drawn: str = ""

    def __post_init__(self) -> None:
        source = self.program.data
        fields = [replace(f, cut={}, sizes=None, mesh=None) for f in source.fields]
        whole = BatchSource(source.kind, batch=source.batch, fields=fields, **source.arguments)
        self.loader = Loader(replace(self.program, data=whole, pipeline=None), whole, self.data["data"])
        self.epoch = 0
        self.coming: Iterator[Batch] = iter(())

    @property
    def total(self) -> int:
        program = self.program
        return program.steps if program.steps is not None else (program.epochs or 0) * self.loader.batches

    def next(self) -> dict[int, Tensor]:
        """The next whole batch, by value id; epoch follows epoch."""
        parts = next(self.coming, None)
        if parts is None:
            self.epoch += 1
            self.coming = self.loader.epoch(self.epoch)
            parts = next(self.coming)
        types = (ELEMENTS[self.graph.values[v].type.dtype] for v in self.graph.data)
        # A field that no axis cuts is whole in every microbatch.
        return {v: x.to(t) for v, x, t in zip(self.graph.data, parts[0].values(), types, strict=True)}


def own(program: RunProgram, graph: Graph) -> Batches:
    """The program's own data, read; RunError where that fails."""
    only = replace(program, eval=None)
    return Batches(program, datasets(only), graph)


def drawn(program: RunProgram, graph: Graph, steps: int, why: str) -> Batches:
    """Random numbers: normal if floating, else below each field's bound; `why` is for the user."""
    source = program.data
    names = {f.name: value for f, value in zip(source.fields, graph.data, strict=True)}
    data = RandomBatches(graph, names, program.seed, source.batch, steps)
    fake = BatchSource("drawn", batch=source.batch, fields=source.fields, shuffle=False)
    return Batches(replace(program, data=fake), {"data": data}, graph, why)
