"""Seconds of kernels on this rank's device, as the parts of a profile: products, attention, what
streams through memory, optimizers, copies."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.runtime.calibrate.clock import Clock, Points, in_digits, microseconds
from shardlang.runtime.device import kind_of
from shardlang.runtime.functions.attention import attention
from shardlang.runtime.state.optimizers import KINDS, optimizer

# Sizes along each dim of a product, by device: 64 products.
SIZES = {"cpu": (8, 64, 512, 2048), "accelerator": (64, 512, 2048, 8192)}
DTYPES = {"cpu": {"f32": torch.float32}, "accelerator": {"f32": torch.float32, "bf16": torch.bfloat16}}
# Bytes of a streamed tensor. All sizes are measured of the plain ones, the first six of others.
BYTES = {"cpu": tuple(4096 * 4**i for i in range(7)), "accelerator": tuple(65536 * 4**i for i in range(7))}
LENGTHS = {"cpu": (32, 128, 512), "accelerator": (512, 2048, 8192)}
WIDTHS, HEADS = (32, 64, 128), 8
ELEMENTS = {"cpu": (100, 10_000, 300_000, 4_000_000), "accelerator": (10_000, 1_000_000, 30_000_000, 100_000_000)}
ROW = 256
# Operators by name: torch's function of each, then what that is called with: `x` stands for
# numbers, `i` for indices of their rows, `over` for their last dim.
Calls = Mapping[str, Sequence[str]]


def products(clock: Clock) -> dict[str, Any]:
    """A grid of [m, k] x [k, n] for each dtype."""
    sizes, found = SIZES[clock.kind], {}
    for name, dtype in DTYPES[clock.kind].items():
        grid: dict[tuple[int, ...], float] = {}
        for m, n, k in itertools.product(sizes, repeat=3):
            left = torch.randn(m, k, device=clock.device, dtype=dtype)
            right = torch.randn(k, n, device=clock.device, dtype=dtype)
            below = [grid[smaller] for smaller in _smaller((m, n, k), sizes)]
            grid[m, n, k] = max([clock.seconds(partial(torch.mm, left, right)), *below])
        found[name] = {"m": sizes, "n": sizes, "k": sizes, "us": list(map(in_digits, grid.values()))}
    return found


def _smaller(point: tuple[int, ...], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The points of a grid that are one step less along one axis."""
    for axis, size in enumerate(point):
        if size != sizes[0]:
            yield (*point[:axis], sizes[sizes.index(size) - 1], *point[axis + 1 :])


def attentions(clock: Clock) -> list[dict[str, Any]]:
    """Forward and backward of the runtime's own attention, over lengths."""
    found = []
    dtypes = DTYPES[clock.kind].items()
    for (name, dtype), causal, width in itertools.product(dtypes, (False, True), WIDTHS):
        ways: tuple[Points, Points] = [], []
        for length in LENGTHS[clock.kind]:
            shape = (1, HEADS, length, width)
            given = [torch.randn(shape, device=clock.device, dtype=dtype, requires_grad=True) for _ in range(3)]
            q, k, v = given
            both = _both(clock, partial(attention, q, k, v, None, causal), given)
            for points, seconds in zip(ways, both, strict=True):
                points.append((length, seconds))
        row = {"dtype": name, "causal": causal, "heads": HEADS, "width": width}
        found += [{**row, "backward": way, "points": microseconds(ways[way])} for way in (False, True)]
    return found


def _both(clock: Clock, call: Callable[[], Tensor], given: Sequence[Tensor]) -> tuple[float, float]:
    """Seconds of a call, and of its backward."""
    with torch.no_grad():
        forward = clock.seconds(call)
    result = call()
    gradient = torch.ones_like(result)
    return forward, clock.seconds(partial(torch.autograd.grad, result, given, gradient, retain_graph=True))


def streams(clock: Clock, calls: Calls, note: Callable[[str], None] = print) -> dict[str, list[list[float]]]:
    """A curve over bytes read and written for each operator. note: is told of those that this torch
    does not have, or that take other arguments there."""
    sizes, found = BYTES[clock.kind], {"": microseconds(_plain(clock))}
    for name, (theirs, *words) in calls.items():
        function = getattr(F, theirs, None) or getattr(torch, theirs, None)
        way = _way(function, words, clock.device) if function is not None else None
        if way is None:
            note(f"`{name}` is not measured: torch {torch.__version__} has no such function of {', '.join(words)}")
            continue
        ways: tuple[Points, Points] = [], []
        for size in sizes[:6]:
            given = way(size)
            leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
            call = partial(_quiet, function, given)
            bytes = sum(x.numel() * x.element_size() for x in (*given, call()) if isinstance(x, Tensor))
            for points, seconds in zip(ways, _both(clock, call, leaves), strict=True):
                points.append((bytes, seconds))
        found[name], found[f"{name} backward"] = microseconds(ways[0]), microseconds(ways[1])
    return found


def _plain(clock: Clock) -> Points:
    """A sum of two tensors: two are read, one is written."""
    found = []
    for size in BYTES[clock.kind]:
        one, other = torch.ones(2, size // 4, device=clock.device)
        found.append((3.0 * size, clock.seconds(partial(torch.add, one, other))))
    return found


def _way(function: Any, words: Sequence[str], device: torch.device) -> Callable[[int], list[Any]] | None:
    """How a function is given arguments of a size. It is told that it is over rows by the dim or by
    its size, also where ours is over all dims by default and torch's wants one. None: torch's of
    this name is another function."""
    for over, named in itertools.product((-1, (ROW,), (-1,)), (words, [*words, "over"])):

        def given(size: int, over: Any = over, named: Sequence[str] = named) -> list[Any]:
            return [over if word == "over" else _leaf(word, size, device) for word in named]

        try:
            _quiet(function, given(4096))
        except (TypeError, IndexError, ValueError, NotImplementedError):
            continue  # it takes other arguments, or more, or another form of the dims: the next way is tried
        return given
    return None


def _leaf(word: str, size: int, device: torch.device) -> Tensor:
    rows = max(1, size // 4 // ROW)
    if word == "x":
        return torch.rand(rows, ROW, device=device, requires_grad=True)
    return torch.zeros(rows, dtype=torch.int64, device=device)


def _quiet(function: Any, given: Sequence[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: Tensor = function(*given)
        return result


def updates(clock: Clock) -> dict[str, list[list[float]]]:
    """A curve over elements of one tensor for each optimizer."""
    found = {}
    kinds = {**{kind: dict[str, float]() for kind in KINDS}, "momentum": {"momentum": 0.9}}
    for name, settings in kinds.items():
        points: Points = []
        for elements in ELEMENTS[clock.kind]:
            parameter = torch.zeros(elements, device=clock.device)
            parameter.grad = torch.zeros_like(parameter)
            made = optimizer("sgd" if name == "momentum" else name, [parameter], {"lr": 1e-3, **settings})
            points.append((float(elements), clock.seconds(partial(made.step, 1e-3))))
        found[name] = microseconds(points)
    return found


def copies(clock: Clock) -> list[list[float]]:
    """From the host's memory to the device, over bytes."""
    # On the CPU both are one memory: the program copies nothing there, and this measures that.
    copied, there = kind_of(clock.device).copied, clock.device
    sizes = BYTES[clock.kind]
    return microseconds([(size, clock.seconds(partial(copied, torch.zeros(size // 4), there))) for size in sizes])
