"""Convolutions and pools in numpy, window by window, for oracles.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Array = np.ndarray
Pair = tuple[int, int]


def _places(x: Array, kernel: Pair, stride: Pair, dilation: Pair) -> Iterator[tuple[Pair, tuple[slice, slice]]]:
    """(place in the result, what a window there covers) of a padded image."""
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [(size - r) // s + 1 for size, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    for i in range(counts[0]):
        for j in range(counts[1]):
            corner = i * stride[0], j * stride[1]
            yield (i, j), tuple(slice(c, c + r, d) for c, r, d in zip(corner, reach, dilation, strict=True))  # type: ignore[misc]


def convolved(stride: Pair = (1, 1), padding: Pair = (0, 0), dilation: Pair = (1, 1),
              groups: int = 1) -> Callable[..., Array]:  # fmt: skip
    """Each window times the weight of each channel out, whose channels in are those of its group."""

    def convolve(x: Array, weight: Array, bias: Array | None = None) -> Array:
        x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
        found = {}
        for place, window in _places(x, weight.shape[2:], stride, dilation):
            piece = x[:, :, window[0], window[1]]
            inner, outer = x.shape[1] // groups, weight.shape[0] // groups
            found[place] = np.stack(
                [np.einsum("bchw,chw->b", piece[:, o // outer * inner : (o // outer + 1) * inner], weight[o])
                 for o in range(weight.shape[0])], 1)  # fmt: skip
        result = _image(found)
        return result if bias is None else result + bias[:, None, None]

    return convolve


def windows(kernel: Pair, stride: Pair, padding: Pair, reduce: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`reduce` of each window, what is padded being NaN."""

    def pool(x: Array) -> Array:
        x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=np.nan)
        return _image({p: reduce(x[:, :, w[0], w[1]]) for p, w in _places(x, kernel, stride, (1, 1))})

    return pool


def greatest(piece: Array) -> Array:
    return np.nanmax(piece, (2, 3))


def average(piece: Array) -> Array:
    """Padding counts as zeros, as it does in torch."""
    return np.nan_to_num(piece).mean((2, 3))


def _image(found: dict[Pair, Array]) -> Array:
    """[batch, channels] at each place -> [batch, channels, height, width]."""
    rows, columns = max(i for i, _ in found) + 1, max(j for _, j in found) + 1
    return np.stack([np.stack([found[i, j] for j in range(columns)], -1) for i in range(rows)], -2)
