"""Turns a key and global indices into numbers: counter-based random numbers that do not depend on
how a value is split.

A number is a pure function of (seed, path of the operator, number of its call, step, index in the
whole value), so every layout and rank count draws the same; CPU and CUDA agree bit for bit in
`bits` and `uniform`. The generator is splitmix64 (Steele, Lea and Flood, 2014): the mixing function
applied to key + index * golden ratio."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from hashlib import blake2b
from typing import TypeAlias

import torch
from torch import Tensor

from shardlang.runtime.tree import Node, path

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_SIGN = -(1 << 63)
# Numbers made at once on the CPU: the several int64 temporaries of a chunk then stay in a core's
# cache.
_CHUNK = 1 << 17
# For what is compiled a tensor, i64 [2]: the same 64 bits, and the golden ratio, which a compiler
# that knew it would multiply indices by as numbers without an end.
Key: TypeAlias = int | Tensor


class KeyParts:
    """The run's seed and current step (0 before the first), which every key contains."""

    seed = 0
    step = 0


def start(seed: int, step: int = 0) -> None:
    """Sets the run's seed and its step, by default that before the first."""
    KeyParts.seed, KeyParts.step = seed, step


def at_step(step: int) -> None:
    """Sets the step that keys made from now on contain."""
    KeyParts.step = step


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def key(at: str | Node, *further: str | int, step: int | None = None) -> Key:
    """A 64-bit key from the seed, the current step (or `step`), a path and the number of the call
    (0 if it is left out): `key("blocks[3].h", call)`, or with a layer and the path below it,
    `key(block, "h", call)`. That of a layer of a compiled block is the tensor that it was given."""
    given = None
    if isinstance(at, Node):
        given = at._keys
        at, further = f"{path(at)}.{further[0]}".removeprefix("."), further[1:]
    call = int(further[0]) if further else 0
    if given is not None:
        return given[at, call]
    return seeded_key(KeyParts.seed, at, call, KeyParts.step if step is None else step)


def seeded_key(seed: int, path: str, call: int = 0, step: int = 0) -> int:
    """A 64-bit key from all that a random number depends on but its index."""
    text = f"{seed}\0{path}\0{call}\0{step}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def key_tensor(at: Iterable[tuple[str, int]]) -> Tensor:
    """i64 [keys, 2]: the keys of this step for paths and numbers of calls, as `bits` takes them."""
    made = [seeded_key(KeyParts.seed, path, call, KeyParts.step) for path, call in at]
    return torch.tensor([[_signed(key), _signed(_GOLDEN)] for key in made])


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign bit are cleared."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mixed(key: Key, index: Tensor, lane: int) -> Tensor:
    """splitmix64 but for its last step, which leaves the upper 31 bits as they are; on int64, in
    place, wrapping as unsigned would."""
    further = lane * 0xD1B54A32D192ED03 + _GOLDEN
    if isinstance(key, Tensor):
        x = index * key[1] + key[0] + _signed(further)
    else:  # one kernel: key + further + golden ratio * index
        x = torch.rsub(index, _signed(key + further), alpha=_signed(-_GOLDEN))
    x.bitwise_xor_(_shift(x, 30)).mul_(_signed(_MIX_1))
    return x.bitwise_xor_(_shift(x, 27)).mul_(_signed(_MIX_2))


def bits(key: Key, index: Tensor, lane: int = 0) -> Tensor:
    """64 random bits per int64 global index; `lane` gives independent numbers for an index."""
    x = _mixed(key, index, lane)
    return x.bitwise_xor_(_shift(x, 31))


def places(start: int | Tensor, size: int, device: torch.device | str | None = None) -> Tensor:
    """i64 [size] from `start` on."""
    if isinstance(start, Tensor):
        return torch.arange(size, device=device) + start
    return torch.arange(start, start + size, device=device)


def global_index(
    shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None = None,
) -> Tensor:  # fmt: skip
    """int64 [*shape]: row-major index in `whole` of each element of a block at `offsets`."""
    joined: list[tuple[int, int, int | Tensor]] = [(1, 1, 0)]
    for size, full, offset in zip(shape, whole, offsets, strict=True):
        if size == full:  # its elements follow each other within the dim before
            count, of, begin = joined[-1]
            joined[-1] = (count * full, of * full, begin * full)
        else:
            joined.append((size, full, offset))
    index: Tensor | None = None
    stride = math.prod(whole)
    for dim, (size, full, offset) in enumerate(joined):
        stride = stride // full if full else 0
        line = places(offset, size, device)
        line = (line if stride == 1 else line.mul_(stride)).view(-1, *[1] * (len(joined) - dim - 1))
        index = line if index is None else index + line
    assert index is not None
    return index.view(tuple(shape))


def _of_block(dtype: torch.dtype) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """A decorator: draw(key, index, ...) becomes a function that draws for each element of a block
    the number, of `dtype`, of its global index in `whole`."""

    def of_block(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(draw)
        def drawn(
            key: Key, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
            device: torch.device | str | None = None, *further: float,
        ) -> Tensor:  # fmt: skip
            index = global_index(shape, whole, offsets, device).reshape(-1)
            if isinstance(key, Tensor) or not index.is_cpu or len(index) <= _CHUNK:
                return draw(key, index, *further).view(tuple(shape))
            result = torch.empty(index.shape, dtype=dtype, device=index.device)
            for begin in range(0, len(result), _CHUNK):
                end = begin + _CHUNK
                result[begin:end] = draw(key, index[begin:end], *further)
            return result.view(tuple(shape))

        return drawn

    return of_block


@_of_block(torch.float32)
def uniform(key: Key, index: Tensor) -> Tensor:
    """float32 [*shape] in [0, 1), of 24 bits each: what a float32 holds exactly."""
    return _shift(_mixed(key, index, 0), 40).to(torch.float32).mul_(2.0**-24)


@_of_block(torch.bool)
def at_least(key: Key, index: Tensor, p: float) -> Tensor:
    """bool [*shape]: whether `uniform` is p or more, above 0 and at most 1; of fewer kernels."""
    # uniform is whole / 2^24, and torch compares it with p as a float32.
    least = math.ceil(struct.unpack("f", struct.pack("f", p))[0] * 2**24)
    x = _mixed(key, index, 0)
    if isinstance(key, Tensor):
        return _shift(x, 40) >= least
    # All 64 bits are compared with the last word that is too small. torch compares with signs, so
    # the first bit is turned round on both sides.
    return x.bitwise_xor_(_SIGN) > (least << 40) - 1 + _SIGN


@_of_block(torch.float32)
def normal(key: Key, index: Tensor) -> Tensor:
    """float32 [*shape], normal with mean 0 and variance 1."""
    # Box-Muller, in float64 so that CPU and CUDA differ by float32 rounding at most; 1 - u avoids
    # log(0).
    radius = _shift(bits(key, index), 11).to(torch.float64).mul_(-(2.0**-53)).add_(1.0).log_().mul_(-2.0).sqrt_()
    angle = _shift(bits(key, index, 1), 11).to(torch.float64).mul_(2.0**-53 * 2.0 * math.pi)
    return radius.mul_(angle.cos_()).to(torch.float32)
