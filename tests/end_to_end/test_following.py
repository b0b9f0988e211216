"""The recorder of peaks (peaks.py) sees what is there without it, also where autograd adds parts of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile

from tests.end_to_end.peaks import following

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added in place": lambda x, w: x @ w + (2 * x) @ w,
    "the first is a view": lambda x, w: linear(x @ w, w),
    "the second is a view": lambda x, w: linear(x, w) @ w,
    "the gradient of the result": lambda x, w: 2 * w + 3 * (2 * w),
    "a view of the gradient of the result": lambda x, w: (2 * w).view(-1) + 3 * (2 * w).view(-1),
    "three parts": lambda x, w: linear(x @ w, w) @ w,
}


@pytest.mark.parametrize("case", CASES)
def test_the_most_bytes_are_those_of_the_profiler(case: str) -> None:
    """To less than a matrix: the profiler has numbers of its own, and sees each vector a little longer."""

    def run() -> None:
        x, w = torch.ones(1, 64), torch.ones(64, 64, requires_grad=True)
        CASES[case](x, w).sum().backward()

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    found: Any = profiler.profiler
    sizes = [event.nbytes() for event in found.kineto_results.events() if event.name() == "[memory]"]
    with following() as mode:
        run()
    assert abs(max(accumulate(sizes)) - mode.peak.bytes) < 64 * 64
