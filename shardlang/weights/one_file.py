"""Tensors -> one safetensors file, as `--save-weights` writes it, some rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shardlang.checkpoints import headers
from shardlang.disk.locks import Claims, drafted
from shardlang.disk.overwrite_guard import SAVED_MARK, WEIGHTS
from shardlang.weights.export import rows_of
from shardlang.weights.files import Weights


def write(weights: Weights, names: Mapping[str, str], path: Path, told: Callable[[int], None] = lambda _: None) -> None:
    """Writes tensors to a file that appears when it is whole. names: what each is called there.
    told: is given the bytes of each part that is written. RunError SH512 where it cannot be."""
    head = headers.written({called: weights.tensors[name] for name, called in names.items()}, SAVED_MARK)
    with Claims() as claims, drafted(claims.file(path, WEIGHTS), "the weights") as file:
        file.write(head)
        for name in names:
            for some in rows_of(name, weights, weights.tensors[name]):
                told(file.write(some))
