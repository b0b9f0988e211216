"""Turns a data source into this rank's part of each batch; the order of examples depends on the
seed alone, not on the ranks.

A source's module reads it into a `Dataset` (arrays.py, drawn.py): examples by number. Here they are
ordered, cut into batches, and each rank takes the slices that its fields' cuts name, one a
microbatch. Loading happens once, before the ranks are forked.

On a device, a thread makes batches ahead and starts their way there, so that no step waits for its
batch."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.comm.host_copies import device_of
from shardlang.runtime.comm.mesh import microbatches, world
from shardlang.runtime.data import arrays, criteo, csv_columns, data_files, drawn, streams, text
from shardlang.runtime.data.agreed import agreed, same
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.own import OwnDataset, Window
from shardlang.runtime.data.workers import Ahead
from shardlang.runtime.device import kind_of
from shardlang.runtime.program import BatchSource, Extent, RunProgram, SourceField, dtype_of

# From a source, the folder of its paths and, for `eval`, the training data, whose vocabulary it
# shares.
Reader = Callable[[BatchSource, Path, Dataset | None], Dataset]
# A batch as a rank has it: per microbatch, its fields by name, in the source's order.
Batch = list[dict[str, Tensor]]
T = TypeVar("T")

READERS: Mapping[str, Reader] = {
    "criteo": criteo.read_criteo, "parallel_text": text.read_parallel, "tokens": text.read_tokens,
    "random": drawn.read, "digits": arrays.read_digits, "mnist": arrays.read_mnist, "numpy": arrays.read_numpy,
    "csv": csv_columns.read_csv,
}  # fmt: skip


def load(source: BatchSource, base: Path, like: Dataset | None = None) -> Dataset:
    """Reads a source; paths are relative to `base`. RunError where a file is missing or malformed.

    like: the training data, where this is `eval`."""
    if "call" in source.arguments:
        own = streams.read(source, base)
        if not own.length:
            raise own.wrong(f"`{source.kind}` finds no example: `len({own.name}(..))` is 0")
        return own
    if source.kind not in READERS:
        help = f"there are: {', '.join(READERS)}"
        raise RunError("SH502", f"data source `{source.kind}` is not there yet", help=help)
    data_files.asked.clear()
    found = READERS[source.kind](source, base, like)
    source.files = tuple(dict.fromkeys(data_files.asked))
    if isinstance(found, csv_columns.Table):
        source.categories = found.categories
    if not found.length:
        path = base / str(source.arguments["path"]) if "path" in source.arguments else None
        fact = f"`{source.kind}` finds no example"
        raise RunError("SH502", fact, file=path, help="name a file that holds examples")
    return found


def require_end(dataset: Dataset, why: str) -> None:
    """RunError where nothing says how many examples a stream has, and something has to know."""
    if isinstance(dataset, streams.ExampleStream) and not dataset.counted:
        help = "give the object `__len__`, the examples of an epoch, or train by `steps`"
        raise dataset.wrong(f"`{dataset.name}` has no `__len__`, and {why}", help)


def order(length: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """int64 [length]: the examples of an epoch (from 1) in their global order."""
    if not shuffle:
        return np.arange(length)
    return np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch])).permutation(length)


def made_ahead(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    """The batches, of which a thread makes as many ahead as the device's kind wants. An error of
    one is raised where its turn is."""
    kind = kind_of(device)
    if not kind.batches_ahead:
        yield from batches
        return
    with ThreadPoolExecutor(1, "batches", kind.take, (device,)) as thread:
        under_way = deque(thread.submit(next, batches, None) for _ in range(kind.batches_ahead))
        try:
            while (batch := under_way.popleft().result()) is not None:
                under_way.append(thread.submit(next, batches, None))
                yield batch
        finally:
            thread.shutdown(cancel_futures=True)


class Cut:
    """The fields of a source that this rank uses, and its part of each in every microbatch."""

    def __init__(self, program: RunProgram, source: BatchSource) -> None:
        self.source = source
        used = {name for stage in program.stages_here for name in program.stages[stage].fields}
        self.fields = [field for field in source.fields if program.pipeline is None or field.name in used]
        self.blocks = [[program.block(field) for field in self.fields] for _ in microbatches(program.microbatches)]
        self.dtypes = [dtype_of(program, field) for field in self.fields]

    def taken(self, take: Callable[[SourceField, Extent], Tensor]) -> Batch:
        """A batch on this rank's devices. take: gives a block of a field."""
        batch: Batch = [{} for _ in self.blocks]
        for part, blocks in zip(batch, self.blocks, strict=True):
            for field, block, dtype in zip(self.fields, blocks, self.dtypes, strict=True):
                device = device_of(field.place)
                part[field.name] = kind_of(device).copied(take(field, block).to(dtype), device)
        return batch


class Loader(Cut):
    """The batches of one source for this rank."""

    def __init__(self, program: RunProgram, source: BatchSource, dataset: Dataset) -> None:
        super().__init__(program, source)
        self.dataset = dataset
        self.own = dataset if isinstance(dataset, OwnDataset) else None
        # A source's own seed draws its examples; the order is the run's unless the source says
        # otherwise.
        self.seed = int(source.arguments.get("seed", program.seed))
        self.shuffle = bool(source.arguments.get("shuffle", self.own is None or self.own.shuffled))
        self._ordered: tuple[int, np.ndarray] | None = None  # the last epoch that was asked for, and its order
        self._ahead: Ahead | None = None
        if isinstance(dataset, streams.ExampleStream):
            starts = [{(block.offsets[0], block.shape[0]) for block in blocks} for blocks in self.blocks]
            dataset.part = streams.part_of(source.batch, starts) if dataset.offers else None

    @property
    def batches(self) -> int:
        """Whole batches of an epoch."""
        return self.dataset.length // self.source.batch

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of a training epoch from number `first` on; what is left over after the last
        whole batch is dropped. All ranks ask for those of a source of the user's own."""
        numbered = (self._numbered(epoch, number) for number in range(first, self.batches))
        if self.own is None:
            yield from made_ahead(map(self._batch, numbered), world.device)
        elif first < self.batches:
            known = agreed(self.own, epoch, np.sort(self._numbered(epoch, first)))
            yield from made_ahead(self._read(self.own, epoch, numbered, known), world.device)

    def _read(self, own: OwnDataset, epoch: int, numbered: Iterable[np.ndarray], known: Window) -> Iterator[Batch]:
        """The batches of examples, each read at once, ahead where that is asked for."""
        numbers, parts = itertools.tee(numbered)
        mine = map(self._mine, parts)
        windows = self._windows(own, epoch, mine)
        for number, (examples, window) in enumerate(zip(numbers, windows, strict=True)):
            if not number:
                same(own, window, known, epoch)
            own.window = window
            yield self._batch(examples)

    def _windows(self, own: OwnDataset, epoch: int, mine: Iterable[np.ndarray]) -> Iterator[Window]:
        workers = int(self.source.arguments.get("workers", 0))
        if not workers:
            return (own.ready(epoch, numbers) for numbers in mine)
        self._ahead = self._ahead or Ahead(own, workers)
        return self._ahead.windows(epoch, mine)

    def _mine(self, examples: np.ndarray) -> np.ndarray:
        """Those of a batch's examples that this rank has a part of, ascending."""
        slices = {(block.offsets[0], block.shape[0]) for blocks in self.blocks for block in blocks}
        parts = [examples[start : start + length] for start, length in slices]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def batch(self, step: int) -> Batch:
        """The batch of a training step, from 1."""
        examples = self.examples(step)
        if self.own is not None:
            self.own.ready((step - 1) // self.batches + 1, self._mine(examples))
        return self._batch(examples)

    def examples(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a training step, from 1."""
        epoch, number = divmod(step - 1, self.batches)
        return self._numbered(epoch + 1, number)

    def _numbered(self, epoch: int, number: int) -> np.ndarray:
        """The examples of batch `number` of an epoch."""
        batch = self.source.batch
        if not self.shuffle:
            return np.arange(number * batch, (number + 1) * batch)
        ordered = self._ordered
        if ordered is None or ordered[0] != epoch:
            self._ordered = ordered = epoch, order(self.dataset.length, self.seed, epoch, self.shuffle)
        return ordered[1][number * batch : (number + 1) * batch]

    def once(self) -> Iterator[tuple[Batch, int]]:
        """All examples in their own order, with the number of real ones in each batch; the last is
        filled up with one of them."""
        batch, length = self.source.batch, self.dataset.length
        counts = [min(batch, length - start) for start in range(0, length, batch)]
        if self.own is None:
            batches: Iterator[Batch] = map(self._batch, self._in_order())
        else:
            known = agreed(self.own, 1, np.unique(next(self._in_order())))
            batches = self._read(self.own, 1, self._in_order(), known)
        yield from made_ahead(zip(batches, counts, strict=True), world.device)

    def _in_order(self) -> Iterator[np.ndarray]:
        """The examples of each batch of an evaluation. A stream is not to go back for the one that
        fills the last."""
        batch, length = self.source.batch, self.dataset.length
        filler = length - 1 if self.own is not None else 0
        for start in range(0, length, batch):
            examples = np.arange(start, start + batch)
            examples[examples >= length] = filler
            yield examples

    def _batch(self, examples: np.ndarray) -> Batch:
        """The batch that `examples` are."""

        def take(field: SourceField, block: Extent) -> Tensor:
            mine = examples[block.slices()[0]]
            return torch.from_numpy(np.ascontiguousarray(self.dataset.take(field, mine, block)))

        return self.taken(take)
