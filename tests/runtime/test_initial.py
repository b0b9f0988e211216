"""Initial values against the language's definition, whole and cut; weights saved from cut tensors are whole again."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import pytest
import torch

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.interpret.meaning import draws
from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.program import Extent
from shardlang.runtime.state.initial import make
from shardlang.runtime.state.weights import save
from tests.runtime.forked import on_ranks

MESH = rt.Mesh(a=2, b=2)
SHAPE = (6, 8)
# Each with what it makes of the uniform (or normal) numbers of the definition.
STARTS = [
    (("zeros",), lambda u, n: torch.zeros(SHAPE)),
    (("ones",), lambda u, n: torch.ones(SHAPE)),
    (("constant", 0.25), lambda u, n: torch.full(SHAPE, 0.25)),
    (("normal", 0.02), lambda u, n: n * 0.02),
    (("normal", 1.0, 0.5), lambda u, n: n * 0.5 + 1.0),
    (("normal",), lambda u, n: n),
    (("uniform", 0.5), lambda u, n: u * 0.5),
    (("uniform", -1.0, 3.0), lambda u, n: u * 4.0 - 1.0),
    (("uniform",), lambda u, n: u),
    (("kaiming_uniform", 8), lambda u, n: (2.0 * u - 1.0) / math.sqrt(8)),
    (("kaiming_uniform", 8, 0.0), lambda u, n: (2.0 * u - 1.0) * math.sqrt(6.0 / 8)),
    (("xavier_uniform", 8, 6), lambda u, n: (2.0 * u - 1.0) * math.sqrt(6.0 / 14)),
]


def _program(*tensors: rt.Parameter, **settings) -> rt.Program:
    source = rt.Source("random", batch=1, fields=[])
    return rt.Program(
        name="t.shard", strategy="", ranks=world.size, mesh=MESH, parameters=tensors, data=source, optimizers=[],
        forward=lambda p: (torch.zeros(()), {}), seed=5, **settings,
    )  # fmt: skip


def _definition(init) -> torch.Tensor:
    key = draws.key_of(5, "net.w")
    return dict((repr(i), f) for i, f in STARTS)[repr(init)](draws.uniform(key, SHAPE), draws.normal(key, SHAPE))


@pytest.fixture(autouse=True)
def _this_rank():
    yield
    world.rank = 0


@pytest.mark.parametrize("init", [init for init, _ in STARTS], ids=repr)
@pytest.mark.parametrize("cut", [{}, {0: "a", 1: "b"}, {1: ("b", "a")}], ids=repr)
def test_a_rank_begins_with_its_block_of_the_whole(init, cut) -> None:
    random.start(5)
    wanted = _definition(init)
    for rank in range(4):
        world.rank = rank
        made = _program(rt.Parameter("net.w", SHAPE, init=init, cut=cut))
        block = made.block(made.parameters[0])
        drawn = make(made, made.parameters[0], block)
        torch.testing.assert_close(drawn, wanted[block.slices()], atol=1e-6, rtol=1e-6)
    assert [MESH["b", "a"].ranks, block.shape] == [(0, 2, 1, 3), block.shape]


def test_layers_begin_as_torchs_do() -> None:
    """The bound of torch.nn.Linear and Conv2d is 1 / sqrt(fan_in)."""
    random.start(5)
    whole = (400, 25)
    drawn = make(_program(), rt.Parameter("w", whole, init=("kaiming_uniform", 25.0)), Extent((0,) * len(whole), whole))
    theirs = torch.nn.Linear(25, 400).weight
    assert drawn.abs().max() <= 0.2
    assert drawn.std().item() == pytest.approx(theirs.std().item(), rel=0.05)


def saved_on_ranks() -> None:
    """Even and uneven cuts, of both dims, over groups that are not in rank order; a scalar; a state."""
    cuts = [{}, {0: "a"}, {1: "b"}, {0: "b", 1: "a"}, {0: ("b", "a")}, {1: ("b", "a")}]
    tensors = [rt.Parameter(f"w{i}", (5, 8), cut=cut) for i, cut in enumerate(cuts)]
    tensors.append(rt.Parameter("given", (5, 8), cut={1: ("b", "a")}, sizes={1: (1, 4, 0, 3)}))
    made = _program(*tensors, rt.Parameter("scalar", ()), states=[rt.State("state", (3,), cut={0: "a"})])
    every = [*made.parameters, *made.states]
    whole = {t.path: torch.arange(math.prod(t.shape), dtype=torch.float32).view(t.shape) for t in every}
    # The parent of all ranks is this test's own.
    path = Path(tempfile.gettempdir()) / f"shard-saved-{os.getppid()}.safetensors"
    save(made, path, [(t, lambda t=t: whole[t.path][made.block(t).slices()].contiguous()) for t in every])
    torch.distributed.barrier()
    from safetensors.torch import load_file

    found = load_file(path)
    assert sorted(found) == sorted(whole)
    for name, value in whole.items():
        assert torch.equal(found[name], value), name
    torch.distributed.barrier()
    path.unlink(missing_ok=True)


def test_saved_weights_are_whole() -> None:
    on_ranks(__file__, "saved_on_ranks", 4)


def test_what_is_given_is_never_drawn() -> None:
    tensor = rt.Parameter("net.w", SHAPE, "given")
    with pytest.raises(RunError, match=r"`net\.w` is given, and the program names no file") as error:
        make(_program(tensor), tensor, Extent((0, 0), SHAPE))
    assert error.value.code == "SH504"
