"""Convolutions, pools and resampling in numpy, window by window, and their oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.ops.oracle import Oracle, oracle

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


def flat(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of [batch, channels, length]: that of an image of one row."""
    return lambda x, *more: function(x[:, :, None], *(m if m.ndim < 3 else m[:, :, None] for m in more))[:, :, 0]


def transposed(stride: Pair = (1, 1), padding: Pair = (0, 0), more: Pair = (0, 0),
               dilation: Pair = (1, 1)) -> Callable[..., Array]:  # fmt: skip
    """Each element puts its multiple of the weight into a larger image, whose border is cut off."""

    def spread(x: Array, weight: Array, bias: Array | None = None) -> Array:
        kernel = weight.shape[2:]
        whole = [(n - 1) * s + d * (k - 1) + 1 + m
                 for n, s, d, k, m in zip(x.shape[2:], stride, dilation, kernel, more, strict=True)]  # fmt: skip
        found = np.zeros((x.shape[0], weight.shape[1], *whole))
        for i, j, a, b in np.ndindex(*x.shape[2:], *kernel):
            at = i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]
            found[:, :, at[0], at[1]] += x[:, :, i, j] @ weight[:, :, a, b]
        rows, columns = (slice(p, n - p) for p, n in zip(padding, whole, strict=True))
        return found[:, :, rows, columns] + (0 if bias is None else bias[:, None, None])

    return spread


def each_way(matrix: Callable[[int, int], Array]) -> Callable[..., Callable[[Array], Array]]:
    """A resampling of rows and columns apart, by a matrix [before, after] of each."""

    def to(*sizes: int) -> Callable[[Array], Array]:
        def resample(x: Array) -> Array:
            for dim, size in enumerate(sizes, 2):
                x = np.moveaxis(np.moveaxis(x, dim, -1) @ matrix(x.shape[dim], size), -1, dim)
            return x

        return resample

    return to


def _rows(before: int, after: int, place: Callable[[int], dict[int, float]]) -> Array:
    found = np.zeros((before, after))
    for j in range(after):
        for i, share in place(j).items():
            found[i, j] += share
    return found


def nearest(before: int, after: int) -> Array:
    return _rows(before, after, lambda j: {j * before // after: 1.0})


def adaptive(before: int, after: int) -> Array:
    def place(j: int) -> dict[int, float]:
        first, last = j * before // after, -(-(j + 1) * before // after)
        return {i: 1.0 / (last - first) for i in range(first, last)}

    return _rows(before, after, place)


def linear(corners: bool = False, scale: float | None = None) -> Callable[[int, int], Array]:
    """Between the centres of elements, or between corners that stay where they are."""

    def matrix(before: int, after: int) -> Array:
        def place(j: int) -> dict[int, float]:
            at = j * (before - 1) / (after - 1) if corners else (j + 0.5) * (1 / scale if scale else before / after)
            at = max(at - (0.0 if corners else 0.5), 0.0)
            low = min(int(at), before - 1)
            high = min(low + 1, before - 1)
            return {low: 1.0} if low == high else {low: 1 - (at - low), high: at - low}

        return _rows(before, after, place)

    return matrix


def grouped(groups: int, eps: float = 1e-5) -> Callable[..., Array]:
    """Example by example, group by group."""

    def normal(x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
        found = np.empty_like(x)
        for b in range(x.shape[0]):
            for each in np.split(np.arange(x.shape[1]), groups):
                part = x[b, each]
                found[b, each] = (part - part.mean()) / np.sqrt(part.var() + eps)
        channels = (-1, *[1] * (x.ndim - 2))
        found = found if weight is None else found * weight.reshape(channels)
        return found if bias is None else found + bias.reshape(channels)

    return normal


IMAGE, SOUND = "b=2 c=4 #6 #5", "b=2 c=4 #7"
IMAGES: tuple[Oracle, ...] = (
    oracle("conv2d", IMAGE, "o=3 c #3 #3", "o", means=convolved()),
    oracle("conv2d", IMAGE, "o=6 c #3 #2", stride=2, padding=1, means=convolved((2, 2), (1, 1))),
    oracle("conv2d", IMAGE, "o=6 #2 #3 #3", "o", groups=2, means=convolved(groups=2)),
    oracle("conv2d", IMAGE, "c 1 #3 #2", "c", groups=4, means=convolved(groups=4)),
    oracle("conv2d", IMAGE, "o=2 c #2 #2", dilation=(2, 3), padding=(0, 2), means=convolved((1, 1), (0, 2), (2, 3))),
    oracle("conv1d", SOUND, "o=6 c #3", "o", means=flat(convolved())),
    oracle("conv1d", SOUND, "o=3 c #2", stride=2, padding=1, dilation=2,
           means=flat(convolved((1, 2), (0, 1), (1, 2)))),
    oracle("conv1d", SOUND, "c 1 #4", "c", padding=3, groups=4, means=flat(convolved(padding=(0, 3), groups=4))),
    oracle("conv_transpose2d", IMAGE, "c o=6 #2 #2", "o", stride=2, means=transposed((2, 2))),
    oracle("conv_transpose2d", IMAGE, "c o=3 #3 #2", padding=1, dilation=(1, 2),
           means=transposed(padding=(1, 1), dilation=(1, 2))),
    oracle("conv_transpose2d", IMAGE, "c o=4 #3 #3", "o", stride=2, padding=(1, 0), output_padding=1,
           means=transposed((2, 2), (1, 0), (1, 1))),
    oracle("conv_transpose1d", SOUND, "c o=6 #3", "o", means=flat(transposed())),
    oracle("conv_transpose1d", SOUND, "c o=3 #2", stride=2, means=flat(transposed((1, 2)))),
    oracle("conv_transpose1d", "b=4 1 #3", "1 o=4 #4", stride=3, padding=1, output_padding=2,
           means=flat(transposed((1, 3), (0, 1), (0, 2)))),
    oracle("max_pool2d", IMAGE, kernel_size=2, means=windows((2, 2), (2, 2), (0, 0), greatest)),
    oracle("max_pool2d", IMAGE, kernel_size=3, stride=1, padding=1, means=windows((3, 3), (1, 1), (1, 1), greatest)),
    oracle("max_pool2d", "b=1 c=1 #7 #4", kernel_size=(3, 2), means=windows((3, 2), (3, 2), (0, 0), greatest)),
    oracle("avg_pool2d", IMAGE, kernel_size=2, means=windows((2, 2), (2, 2), (0, 0), average)),
    oracle("avg_pool2d", IMAGE, kernel_size=(3, 2), stride=1, means=windows((3, 2), (1, 1), (0, 0), average)),
    oracle("avg_pool2d", IMAGE, kernel_size=3, stride=2, padding=1, means=windows((3, 3), (2, 2), (1, 1), average)),
    *[oracle(name, SOUND, kernel_size=k, stride=s, padding=p, means=flat(windows((1, k), (1, s or k), (0, p), reduce)))
      for name, reduce in (("max_pool1d", greatest), ("avg_pool1d", average))
      for k, s, p in ((2, None, 0), (3, 1, 1), (3, 2, 0))],
    *[oracle("adaptive_avg_pool2d", IMAGE, output_size=to, means=each_way(adaptive)(*to))
      for to in ((1, 1), (3, 5), (4, 7))],
    *[oracle("adaptive_avg_pool1d", SOUND, output_size=to, means=each_way(adaptive)(to)) for to in (1, 3, 9)],
    oracle("interpolate", IMAGE, scale_factor=2, means=each_way(nearest)(12, 10)),
    oracle("interpolate", IMAGE, size=(4, 7), means=each_way(nearest)(4, 7)),
    oracle("interpolate", SOUND, size=5, means=each_way(nearest)(5)),
    oracle("interpolate", IMAGE, scale_factor=2, mode="bilinear", means=each_way(linear())(12, 10)),
    oracle("interpolate", IMAGE, size=(9, 3), mode="bilinear", align_corners=True,
           means=each_way(linear(True))(9, 3)),
    oracle("interpolate", SOUND, scale_factor=1.5, mode="linear", means=each_way(linear(scale=1.5))(10)),
    oracle("group_norm", "b=2 c=4 #3 #2", "c", "c", num_groups=2, means=grouped(2)),
    oracle("group_norm", "b=4 c=6 s=3", num_groups=3, eps=0.1, means=grouped(3, 0.1)),
    oracle("group_norm", "b=4 g=2*e=3", None, "g*e", num_groups=2, means=lambda x, b: grouped(2)(x, None, b)),
    oracle("group_norm", "b=2 c=4 #5", "c", num_groups=4, means=grouped(4)),
)  # fmt: skip
