"""Plain numbers -> seconds of one operator on one device: products, attention, what streams through
memory, the optimizer's update, copies to and from the host.

    product(hardware, batch, m, n, k, dtype)
    attention(hardware, batch_heads, queries, keys, width, causal, cut, fused, dtype, backward)
    stream(hardware, operator, bytes_read, bytes_written)
    update(hardware, kind, elements)
    copy(hardware, bytes)

All return seconds as a float, more for more work, and count one launch of a kernel for each kernel.
The roofline is that of Williams, Waterman, Patterson, 2009."""

from __future__ import annotations

import math
from typing import Final

from shardlang.cost.hardware import Hardware
from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.types.dim import BYTES

# Rows and columns of the result that a multiprocessor computes at a time (CUTLASS, cuBLAS).
_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
# A tile's first operands are read and its result is written while nothing is multiplied: as long as
# memory takes to move three such results, one for the result itself, two for the operands. By 2.5
# to 4 published steps (benchmarks/published_times.py) are predicted about as well.
_FILL: Final = 3
# A tile reads (rows + columns) operands for rows x columns products: this many products an operand
# are as long as reading it from the second cache takes, so that small tiles reach less of the peak.
_READ: Final = 8
_BACKWARD: Final = 2.5  # attention computes its scores again: 5 products for 2 (Dao, 2023)
# kind of update -> tensors of f32 that it reads and writes (PyTorch's foreach kernels): the
# parameter, its gradient, and what an optimizer keeps.
_UPDATES: Final = {
    **{kind: (2 + len(facts.state), 1 + len(facts.state)) for kind, facts in OPTIMIZERS.items()},
    "sgd": (2, 1), "momentum": (3, 2), "norm": (1, 0), "scale": (1, 1), "clip": (2, 1), "ema": (2, 1),
}  # fmt: skip


def width_of(dtype: str) -> int:
    """Bytes of an element; f8 is no type of the language yet."""
    return 1 if dtype == "f8" else BYTES[dtype]


def product(hardware: Hardware, batch: int, m: int, n: int, k: int, dtype: str) -> float:
    """Seconds of `batch` products [m, k] x [k, n]: the longer of compute and memory, and a launch.

    compute = waves x 2 rows columns (k + fill) units / (peak x share), of the tile that is fastest;
    waves = the mean of tiles / units and that rounded up: a last wave that is not full takes as
    long as a full one, but the tiles of it start early; fill = the steps of k that the device could
    do while three tiles of the result move. Memory: each operand and the result once."""
    if not batch * m * n * k:
        return hardware.launch
    measured = hardware.profile.products.get(dtype) if hardware.profile else None
    if measured is not None:
        return _launched(hardware, min(batch * measured.at(m, n, k), measured.at(batch * m, n, k)))
    rate = hardware.peak(dtype) * hardware.shares.product
    filled = k + _FILL * width_of(dtype) / 2 * hardware.peak(dtype) / hardware.bandwidth
    compute = min(_tiled(hardware.units, batch, m, n, filled, tile) for tile in _TILES) / rate
    moved = batch * (m * k + k * n + m * n) * width_of(dtype) / hardware.bandwidth
    return max(compute, moved) + hardware.launch


def _launched(hardware: Hardware, kernel: float) -> float:
    """Seconds of a measured kernel in an emitted program. A device that is given work ahead hides
    the shorter of kernel and launch; the CPU does both one after the other."""
    if hardware.profile is not None and hardware.profile.asynchronous:
        return max(kernel, hardware.launch)
    return kernel + hardware.launch


def _tiled(units: int, batch: int, m: int, n: int, k: float, tile: tuple[int, int]) -> float:
    """The FLOPs for which all units are busy; a tile of 256 x 128 reaches the whole rate."""
    rows, columns = tile
    tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
    waves = (math.ceil(tiles / units) + tiles / units) / 2
    reading = (1 + _READ * (1 / rows + 1 / columns)) / (1 + _READ * (1 / 256 + 1 / 128))
    return waves * units * 2 * rows * columns * k * reading


def attention(hardware: Hardware, batch_heads: int, queries: int, keys: int, width: float, causal: bool, cut: bool,
              fused: bool, dtype: str, backward: bool) -> float:  # fmt: skip
    """Seconds of attention of `batch_heads` heads, forward or backward.

    fused: 4 queries keys width FLOPs at the share of its own, half of them where `causal` hides
    pairs and the sequence is not `cut` over ranks; 2.5 times as many backward. Else two products
    (four backward) with the scores in memory, which the softmax and the mask read and write."""
    measured = hardware.profile.attention.get((dtype, causal and not cut, backward)) if hardware.profile else None
    if fused and measured:
        heads, wide, curve = min(measured, key=lambda row: (abs(math.log(row[1] / width)), row[0]))
        kernel = curve.at(math.sqrt(queries * keys)) * batch_heads * width / (heads * wide)
        return _launched(hardware, kernel)
    if not fused:
        return _attention_in_pieces(
            hardware, batch_heads, queries, keys=keys, width=round(width), causal=causal, dtype=dtype, backward=backward
        )
    flops = 4.0 * batch_heads * queries * keys * width * (0.5 if causal and not cut else 1.0)
    share = hardware.shares.attention_backward if backward else hardware.shares.attention
    compute = flops * (_BACKWARD if backward else 1.0) / (hardware.peak(dtype) * share)
    tensors = (4 if backward else 2) * batch_heads * (queries + keys) * width
    return max(compute, tensors * width_of(dtype) / hardware.bandwidth) + hardware.launch


def _attention_in_pieces(hardware: Hardware, batch_heads: int, queries: int, keys: int, width: int, causal: bool,
                         dtype: str, backward: bool) -> float:  # fmt: skip
    scores = product(hardware, batch_heads, queries, keys, width, dtype)
    values = product(hardware, batch_heads, queries, width, keys, dtype)
    size = batch_heads * queries * keys * width_of(dtype)
    if backward:
        keyed = product(hardware, batch_heads, keys, width, queries, dtype)
        return scores + values + 2 * keyed + stream(hardware, "", 2 * size, size)
    masked = stream(hardware, "", size, size) if causal else 0.0
    return scores + values + masked + stream(hardware, "", size, size)


def stream(hardware: Hardware, operator: str, bytes_read: float, bytes_written: float, backward: bool = False) -> float:
    """Seconds of an operator whose time is that of its bytes: (read + written) / (share x
    bandwidth), and a launch. `operator`: the name by which a profile may have it, or ""; it may
    have its backward apart."""
    moved = bytes_read + bytes_written
    if hardware.profile is not None and hardware.profile.streams:
        streams = hardware.profile.streams
        named = streams.get(f"{operator} backward" if backward else operator) or streams.get("")
        if named is not None:
            return _launched(hardware, named.at(moved))
    return moved / (hardware.bandwidth * hardware.shares.stream) + hardware.launch


def update(hardware: Hardware, kind: str, elements: int) -> float:
    """Seconds of an optimizer's update of `elements` parameters in f32 (its state too), by its
    name, or `momentum` (sgd with it); of `clip` in all, or its parts `norm` and `scale`; of `ema`.
    A copy of the parameters in 16 bits is a `stream`."""
    measured = hardware.profile.updates.get(kind) if hardware.profile else None
    if measured is not None:
        return _launched(hardware, measured.at(elements))
    read, written = _UPDATES[kind]
    return stream(hardware, kind, 4.0 * read * elements, 4.0 * written * elements)


def copy(hardware: Hardware, bytes: float) -> float:
    """Seconds of a copy between the host's memory and the device's: bytes / rate, and a launch."""
    if hardware.profile is not None and hardware.profile.copies is not None:
        return _launched(hardware, hardware.profile.copies.at(bytes))
    return bytes / hardware.host + hardware.launch
