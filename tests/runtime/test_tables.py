"""Tables with gradients as rows: the optimizers against dense formulas, lookups against torch, exchange over ranks."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import RankMesh
from shardlang.runtime.state.optimizers import clip, optimizer, squares
from shardlang.runtime.state.sparse import RowBucket, sparse_embedding
from tests import warm
from tests.end_to_end.curves import ROOT
from tests.runtime.forked import on_ranks

ROWS, WIDTH, STEPS = 40, 3, 50


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", [None, (1, 2, 3)])
def test_a_gradient_of_rows_is_put_in_its_place_among_zeros(dim: int, sizes: tuple[int, ...] | None) -> None:
    """Of a part of a table's rows, or of their columns, as each microbatch reads one."""
    group: Any = SimpleNamespace(size=3, index=1)
    shape = [4, 4]
    shape[dim] = 2
    dense = torch.arange(8.0).view(shape)
    whole = blocks.filled(dense.to_sparse(1), dim, group, sizes)
    assert whole.is_sparse and torch.equal(whole.to_dense(), blocks.filled(dense, dim, group, sizes))


def looked_up(step: int) -> torch.Tensor:
    """The ids of a batch: some twice, half of the table never."""
    return torch.randint(0, ROWS // 2, (7,), generator=torch.Generator().manual_seed(step))


def targets(step: int) -> torch.Tensor:
    return torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1000 + step), dtype=torch.float64)


def start() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def ftrl_in_numpy(settings: dict[str, float]) -> np.ndarray:
    """McMahan et al. 2013 as it is printed, element by element over the whole table, with n beginning as given."""
    w = start().numpy().copy()
    n, z = np.full_like(w, settings["initial_accumulator"]), np.zeros_like(w)
    lr, l1, l2 = settings["lr"], settings["l1"], settings["l2"]
    for step in range(STEPS):
        g, ids = np.zeros_like(w), looked_up(step).numpy()
        np.add.at(g, ids, (w[ids] - targets(step).numpy()) * 2.0)
        for row in sorted(set(ids.tolist())):
            for k in range(WIDTH):
                sigma = (math.sqrt(n[row, k] + g[row, k] ** 2) - math.sqrt(n[row, k])) / lr
                z[row, k] += g[row, k] - sigma * w[row, k]
                n[row, k] += g[row, k] ** 2
                beyond = abs(z[row, k]) - l1
                curvature = math.sqrt(n[row, k]) / lr + 2.0 * l2
                w[row, k] = 0.0 if beyond <= 0 else -math.copysign(beyond, z[row, k]) / curvature
    return w


def lazy_adam_in_numpy(settings: dict[str, float]) -> np.ndarray:
    """Adam's moments in dense arrays, of which only the rows of the batch change."""
    w = start().numpy().copy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for step in range(STEPS):
        g, ids = np.zeros_like(w), looked_up(step).numpy()
        np.add.at(g, ids, (w[ids] - targets(step).numpy()) * 2.0)
        touched = np.isin(np.arange(ROWS), ids)[:, None]
        m = np.where(touched, 0.9 * m + 0.1 * g, m)
        v = np.where(touched, 0.999 * v + 0.001 * g * g, v)
        rate = settings["lr"] * math.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        w = np.where(touched, w - rate * m / (np.sqrt(v) + settings["eps"]), w)
    return w


def trained(kind: str, settings: dict[str, float]) -> torch.Tensor:
    """STEPS steps on sparse gradients, as a run makes them."""
    table = start().requires_grad_()
    made = optimizer(kind, [table], settings)
    bucket = RowBucket(RankMesh()[()], table)
    for step in range(STEPS):
        found = sparse_embedding(looked_up(step), table)
        (found - targets(step)).square().sum().backward()
        assert table.grad.is_sparse
        bucket.launch()
        bucket.finish()
        with torch.no_grad():
            made.step(made.lr)
        table.grad = None
    return table.detach()


FTRL = {"lr": 0.05, "l1": 0.3, "l2": 0.01, "initial_accumulator": 1.0}


@pytest.mark.parametrize(
    ("kind", "settings", "dense"),
    [
        ("ftrl", FTRL, ftrl_in_numpy),
        ("ftrl", {**FTRL, "l1": 0.0, "l2": 0.0, "initial_accumulator": 0.1}, ftrl_in_numpy),
        ("lazy_adam", {"lr": 0.02, "eps": 1e-8}, lazy_adam_in_numpy),
    ],
)
def test_rows_of_the_batch_are_as_by_the_dense_formula_and_others_untouched(kind, settings, dense) -> None:
    found = trained(kind, settings)
    np.testing.assert_allclose(found.numpy(), dense(settings), rtol=0, atol=1e-6)
    untouched = sorted(set(range(ROWS)) - {int(i) for step in range(STEPS) for i in looked_up(step)})
    assert len(untouched) >= ROWS // 2
    assert torch.equal(found[untouched], start()[untouched])


def test_ftrl_makes_weights_zero() -> None:
    assert (trained("ftrl", {**FTRL, "l1": 30.0}) == 0).sum() >= 30


@pytest.mark.parametrize(
    ("kind", "settings", "theirs", "dense"),
    [
        ("lazy_adam", {"lr": 0.02}, torch.optim.SparseAdam, False),
        ("adagrad", {"lr": 0.1}, torch.optim.Adagrad, True),
        ("sgd", {"lr": 0.1}, torch.optim.SGD, True),
    ],
)
def test_torch_agrees(kind: str, settings: dict[str, float], theirs: type, dense: bool) -> None:
    leaf = torch.nn.Parameter(start())
    made = theirs([leaf], **settings)
    for step in range(STEPS):
        made.zero_grad()
        (F.embedding(looked_up(step), leaf, sparse=not dense) - targets(step)).square().sum().backward()
        made.step()
    torch.testing.assert_close(trained(kind, settings), leaf.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["ftrl", "adagrad", "lazy_adam"])
def test_on_a_dense_gradient_all_elements_are_rows(kind: str) -> None:
    settings = {"lr": 0.05}
    dense, sparse = start(), start()
    one, other = optimizer(kind, [dense], settings), optimizer(kind, [sparse], settings)
    for step in range(5):
        gradient = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        dense.grad = gradient
        all_rows = torch.arange(ROWS).unsqueeze(0)
        sparse.grad = torch.sparse_coo_tensor(all_rows, gradient, sparse.shape, check_invariants=False).coalesce()
        one.step(one.lr)
        other.step(other.lr)
    assert torch.equal(dense, sparse)


def test_a_part_of_a_table_gives_its_rows_and_touches_no_other() -> None:
    ids = torch.tensor([[0, 9], [25, 39]])
    part = start()[10:30].clone().requires_grad_()
    found = sparse_embedding(ids, part, start=10)
    assert torch.equal(found[1, 0], start()[25]) and not found[0].any() and not found[1, 1].any()
    found.sum().backward()
    assert part.grad.coalesce().indices().tolist() == [[15]]


def test_the_norm_counts_a_row_once() -> None:
    table, plain = start().requires_grad_(), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([3, 3, 7])
    loss = (sparse_embedding(ids, table) * torch.tensor([[1.0], [2.0], [4.0]])).sum() + (plain * 3.0).sum()
    loss.backward()
    bucket = RowBucket(RankMesh()[()], table)
    bucket.launch()
    bucket.finish()
    norm = squares([table, plain]).wait().sqrt()
    clip([table, plain], 1.0, norm)
    assert norm.item() == pytest.approx(math.sqrt(3 * 9 + 3 * 16 + 2 * 9))
    left = table.grad.values().square().sum() + plain.grad.square().sum()
    assert left.item() == pytest.approx(1.0, rel=1e-5)


MESH = RankMesh(dp=2, mp=2)


def rows_of_ranks() -> None:
    """Over dp each rank has half of the batch, over mp half of the table; together they have one device's gradient."""
    whole = start().requires_grad_()
    ids = torch.stack([looked_up(step) for step in range(4)])
    weights = torch.arange(28.0, dtype=torch.float64).view(4, 7, 1)
    (sparse_embedding(ids, whole) * weights).sum().backward()
    expected = whole.grad.to_dense()

    half = ROWS // 2
    first = MESH.mp.index * half
    mine = slice(MESH.dp.index * 2, MESH.dp.index * 2 + 2)
    part = start()[first : first + half].clone().requires_grad_()
    (sparse_embedding(ids[mine], part, start=first) * weights[mine]).sum().backward()
    bucket = RowBucket(MESH.dp, part)
    bucket.launch()
    bucket.finish()
    torch.testing.assert_close(part.grad.to_dense(), expected[first : first + half])
    found = part.grad.indices()[0]
    assert torch.equal(found, found.unique())


def test_ranks_have_one_devices_rows() -> None:
    on_ranks(__file__, "rows_of_ranks", 4)


SILENT = """
import warnings, torch
torch.set_warn_always(True)
warnings.simplefilter("error")
from shardlang import runtime as rt
from shardlang.runtime.state.sparse import RowBucket
table = torch.zeros(5, 2, requires_grad=True)
bucket = RowBucket(rt.Mesh()[()], table)
for _ in range(2):
    rt.sparse_embedding(torch.tensor([1, 3, 1]), table).sum().backward()
bucket.launch()
bucket.finish()
assert table.grad.coalesce().values().tolist() == [[4, 4], [2, 2]]
# what some versions of torch make of every call, whatever it says of the checks
torch.sparse_coo_tensor(size=(5, 2))
"""


def test_torch_does_not_warn_of_tables() -> None:
    """In a process of its own: torch warns once."""
    done = warm.run([sys.executable, "-c", SILENT], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
