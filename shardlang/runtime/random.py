"""Turns a key and global indices into numbers: counter-based random numbers that do not depend on
how a value is split.

A number is a pure function of (seed, path of the operator, number of its call, step, index in the
whole value), so every layout and rank count draws the same; CPU and CUDA agree bit for bit in
`bits` and `uniform`. The generator is splitmix64 (Steele, Lea and Flood, 2014): the mixing function
applied to key + index * golden ratio. Masks have bits
of their own, in functions/masks.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeAlias

import torch
from torch import Tensor

from shardlang.runtime.tree import LayerNode, path

GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# Numbers made at once on the CPU: the several int64 temporaries of a chunk then stay in a core's
# cache.
CHUNK = 1 << 17
# For what is compiled a tensor, i64 [2]: the same 64 bits, and the golden ratio. A compiler that
# knew all factors of an index would take it for a place in memory: without an end, or in 32 bits.
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


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def key(at: str | LayerNode, *further: str | int, step: int | None = None) -> Key:
    """A 64-bit key from the seed, the current step (or `step`), a path and the number of the call
    (0 if it is left out): `key("blocks[3].h", call)`, or with a layer and the path below it,
    `key(block, "h", call)`. That of a layer of a compiled block is the tensor that it was given."""
    given = None
    if isinstance(at, LayerNode):
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
    return torch.tensor([[signed(key), signed(GOLDEN)] for key in made])


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign bit are cleared."""
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mixed(key: Key, index: Tensor, lane: int) -> Tensor:
    """splitmix64 but for its last step, which leaves the upper 31 bits as they are; on int64, in
    place, wrapping as unsigned would. index: for a key as a tensor, times the golden ratio."""
    further = lane * 0xD1B54A32D192ED03 + GOLDEN
    if isinstance(key, Tensor):
        x = index + (key[0] + signed(further))
    else:  # one kernel: key + further + golden ratio * index
        x = torch.rsub(index, signed(key + further), alpha=signed(-GOLDEN))
    x.bitwise_xor_(_shift(x, 30)).mul_(signed(_MIX_1))
    return x.bitwise_xor_(_shift(x, 27)).mul_(signed(_MIX_2))


def bits(key: Key, index: Tensor, lane: int = 0) -> Tensor:
    """64 random bits per int64 global index (for a key as a tensor: `multiples` of key[1]); `lane`
    gives independent numbers for an index."""
    x = _mixed(key, index, lane)
    return x.bitwise_xor_(_shift(x, 31))


def places(start: int | Tensor, size: int, device: torch.device | str | None = None) -> Tensor:
    """i64 [size] from `start` on."""
    if isinstance(start, Tensor):
        return torch.arange(size, device=device) + start
    return torch.arange(start, start + size, device=device)


def joined(
    shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor]
) -> list[tuple[int, int, int | Tensor]]:
    """The dims of a block at `offsets` of `whole`, those joined that lie on end: (size, stride in
    the whole, offset), major first."""
    found: list[tuple[int, int, int | Tensor]] = []
    for size, full, offset in zip(shape, whole, offsets, strict=True):
        if found and size == full:  # its elements follow each other within the dim before
            count, of, begin = found[-1]
            found[-1] = (count * full, of * full, begin * full)
        else:
            found.append((size, full, offset))
    stride = 1
    for at in range(len(found) - 1, -1, -1):
        size, full, offset = found[at]
        found[at] = size, stride, offset
        stride *= full
    return found


def global_index(
    shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None = None,
) -> Tensor:  # fmt: skip
    """int64 [*shape]: row-major index in `whole` of each element of a block at `offsets`."""
    index: Tensor | None = None
    dims = joined(shape, whole, offsets) or [(1, 1, 0)]
    for dim, (size, stride, offset) in enumerate(dims):
        line = places(offset, size, device)
        line = (line if stride == 1 else line.mul_(stride)).view(-1, *[1] * (len(dims) - dim - 1))
        index = line if index is None else index + line
    assert index is not None
    return index.view(tuple(shape))


def multiples(
    step: Tensor, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None = None,
) -> Tensor:  # fmt: skip
    """int64 [*shape]: `step` times the global index, modulo 2^64. No part of it is a number that a
    compiler could take for a place in memory."""
    dims = joined(shape, whole, offsets)
    found = step * sum(stride * offset for _, stride, offset in dims)
    for at, (size, stride, _) in enumerate(dims):
        found = found + (places(0, size, device) * (step * stride)).view(-1, *[1] * (len(dims) - at - 1))
    return found.view(tuple(shape))


def _of_block(draw: Callable[[Key, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function that draws for each element of a block the number of its global index in
    `whole`."""

    def drawn(
        key: Key, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
        device: torch.device | str | None = None,
    ) -> Tensor:  # fmt: skip
        if isinstance(key, Tensor):
            return draw(key, multiples(key[1], shape, whole, offsets, device))
        index = global_index(shape, whole, offsets, device).reshape(-1)
        if not index.is_cpu or len(index) <= CHUNK:
            return draw(key, index).view(tuple(shape))
        result = torch.empty(index.shape, dtype=torch.float32, device=index.device)
        for begin in range(0, len(result), CHUNK):
            end = begin + CHUNK
            result[begin:end] = draw(key, index[begin:end])
        return result.view(tuple(shape))

    return drawn


@_of_block
def uniform(key: Key, index: Tensor) -> Tensor:
    """float32 [*shape] in [0, 1), of 24 bits each: what a float32 holds exactly."""
    return _shift(_mixed(key, index, 0), 40).to(torch.float32).mul_(2.0**-24)


@_of_block
def normal(key: Key, index: Tensor) -> Tensor:
    """float32 [*shape], normal with mean 0 and variance 1."""
    # Box-Muller, in float64 so that CPU and CUDA differ by float32 rounding at most; 1 - u avoids
    # log(0).
    radius = _shift(bits(key, index), 11).to(torch.float64).mul_(-(2.0**-53)).add_(1.0).log_().mul_(-2.0).sqrt_()
    angle = _shift(bits(key, index, 1), 11).to(torch.float64).mul_(2.0**-53 * 2.0 * math.pi)
    return radius.mul_(angle.cos_()).to(torch.float32)
