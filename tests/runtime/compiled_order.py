"""Ends with 0 where compiled code calls what has an effect in the order of the program, in training and in evaluation,
also where nothing else needs that order. `python -m tests.runtime.compiled_order`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch._inductor import cpu_vec_isa

from shardlang.runtime.comm import traced
from shardlang.runtime.comm.traced import moves

_told: list[str] = []


@moves(lambda x, name, times: (times * x.shape[0], x.shape[1]))
def told(x: Tensor, name: str, times: int) -> Tensor:
    """The rows so many times, as a gather gives them."""
    _told.append(name)
    return x.repeat(times, 1)


def attends(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """What needs nothing of what is told before it."""
    queries, keys, values = x @ one, x @ two, x @ three
    keys, values, queries = told(keys, "keys", 1), told(values, "values", 1), told(queries, "queries", 1)
    return (queries[:2] @ keys[:2].T).softmax(-1) @ values[:2] + queries[2:]


def main() -> int:
    cpu_vec_isa.valid_vec_isa_list = lambda: []
    traced.define()
    traced.keep_order()
    for trains in (False, True):
        given = [torch.randn(4, 4, requires_grad=trains) for _ in range(4)]
        compiled = torch.compile(attends, fullgraph=True, dynamic=False)
        for run in (attends, compiled):
            _told.clear()
            with torch.set_grad_enabled(trains):
                run(*given)
            if _told != ["keys", "values", "queries"]:
                print(trains, _told)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
