"""Settings of a run as an emitted program writes them: plain data, a class for each."""

from __future__ import annotations

from dataclasses import dataclass

from shardlang.runtime.weight_names import Names


@dataclass(frozen=True)
class Linear:
    """Learning rates: up to the optimizer's at step `warmup`, then linearly to `min`."""

    warmup: int = 0
    min: float = 0.0


@dataclass(frozen=True)
class WarmupCosine(Linear):
    """The same, with half a cosine down to `min`."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint every so many steps, and at the end, in folder `to`; `keep` stay, 0: all."""

    every: int
    keep: int
    to: str


@dataclass(frozen=True)
class Safetensors:
    """A file of weights that a run starts from; `names` where it names them in another way."""

    path: str
    names: Names | None = None
