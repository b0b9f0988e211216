"""ZeRO on real ranks: what a rank holds follows the paper; parameters come together, and ahead of their use."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardlang import runtime as rt
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.state import alive
from shardlang.runtime.state.buckets import Reducer, SumBucket
from shardlang.runtime.state.zero import ShardBucket, Zero12Parameter
from shardlang.runtime.state.zero3 import GatheredUnit, GatherQueue, GatherSchedule, Together, Zero3Parameter
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks

LAYERS, WIDTH, BATCH = 6, 64, 8
# Parameters of a layer, and of all: a weight and a bias.
EACH = WIDTH * WIDTH + WIDTH
COUNT = LAYERS * EACH


def _forward(p, x, label):
    for layer in range(LAYERS):
        x = torch.tanh(x @ p.layers[layer].weight + p.layers[layer].bias)
    return (x - label).square().sum() / (BATCH * WIDTH), {}


def program(zero: int, bucket_bytes: int, optimizer: str = "adam", parts: int = 1) -> rt.Program:
    mesh = rt.Mesh(dp=world.size, microbatch=rt.Time(parts))
    cut = {0: ("microbatch", "dp")}
    zeroed = {"zero": (zero, "dp")}
    shapes = {
        f"layers[{n}].{name}": s for n in range(LAYERS) for name, s in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,)))
    }
    return rt.Program(
        name="test.shard", strategy="", ranks=world.size, mesh=mesh, seed=3,
        parameters=[
            rt.Parameter(path, shape, ("normal", 0.3), reduce="dp", **zeroed)
            for path, shape in shapes.items()
        ],
        data=rt.Source(
            "random", batch=BATCH, batches=4, seed=1,
            fields=[rt.Field("x", "f32", (BATCH, WIDTH), cut), rt.Field("label", "f32", (BATCH, WIDTH), cut)],
        ),
        optimizers=[rt.Optimizer(optimizer, lr=0.01)],
        forward=_forward, gathers=rt.Order((f"layers[0..{LAYERS}]",), (f"layers[1..{LAYERS}]",)),
        loss_pending=("dp", "microbatch"), epochs=2, bucket_bytes=bucket_bytes,
    )  # fmt: skip


def _bytes(tensors) -> int:
    """Of distinct memory."""
    found = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None and t.numel()
    }
    return sum(found.values())


def follows_the_paper() -> None:
    """Bytes of parameters, gradients and optimizer state: 4, 4 and 8 of each parameter (Adam in float32), of which ZeRO
    divides by the number of ranks the last, the last two, or all (Rajbhandari and others, 2020, figure 1).
    """
    n = world.size
    for zero, expected in ((0, (4, 4, 8)), (1, (4, 4, 8 / n)), (2, (4, 4 / n, 8 / n)), (3, (4 / n, 4 / n, 8 / n))):
        made = program(zero, 10_000)
        run = TrainingRun(made, datasets(made), Log(None, None))
        loader = run.loader.epoch(1)
        run.passes.step(next(loader))
        run.model.update(1, 8)
        run.passes.step(next(loader))
        model = run.model
        held = list(model.trained.values())
        gradients = [t.grad for t in model.trained.values()]
        kept = [t for o in model.optimizers for tensors in o.kept().values() for t in tensors]
        found = _bytes(held), _bytes(gradients), _bytes(kept)
        if zero == 1:
            # Whole gradients are there until the last microbatch is through; then they are rows.
            assert _bytes(gradients) == COUNT * 4 // n
            found = found[0], COUNT * 4, found[2]
        for mine, bytes_each in zip(found, expected, strict=True):
            assert mine == pytest.approx(COUNT * bytes_each, rel=0.02), (zero, found, expected)


class _Watched(TorchDispatchMode):
    """Notes what begins, and every product with the layers whose gathered weights are there then."""

    def __init__(self, names: dict[Zero3Parameter, str]) -> None:
        super().__init__()
        self.names, self.events = names, []
        self.made: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self.real = GatheredUnit.begin, Together.arrived, primitives.begin_reduce_scatter, ShardBucket.finish
        self.sums = primitives.begin_reduce, SumBucket.finish, ShardBucket.collect

    def __enter__(self) -> _Watched:
        begin, arrived, scatter, finish = self.real

        def begun(unit: GatheredUnit) -> list[primitives.AsyncResult]:
            self.events.append(("begin", *sorted({self.names[member] for member in unit.members})))
            return begin(unit)

        def came(together: Together, ready: primitives.AsyncResult) -> list[tuple[Zero3Parameter, torch.Tensor]]:
            found = list(arrived(together, ready))
            self.made += [(self.names[stored], weakref.ref(whole)) for stored, whole in found]
            return found

        GatheredUnit.begin, Together.arrived = begun, came
        primitives.begin_reduce_scatter = lambda x, *rest: (self.events.append(("sum",)), scatter(x, *rest))[1]
        ShardBucket.finish = lambda bucket: (self.events.append(("wait",)), finish(bucket))[1]
        reduce, end, collect = self.sums

        def reduced(x: torch.Tensor, *rest: object, **more: object) -> primitives.AsyncResult:
            self.events += [("sum",)] * (x.dtype != torch.float64)  # figures are
            return reduce(x, *rest, **more)

        primitives.begin_reduce = reduced
        SumBucket.finish = lambda bucket: (self.events.append(("wait",)), end(bucket))[1]

        def collected(bucket: ShardBucket) -> None:
            self.events += [("came",)] * (bucket.sum is not None)
            collect(bucket)

        ShardBucket.collect = collected
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        GatheredUnit.begin, Together.arrived, primitives.begin_reduce_scatter, ShardBucket.finish = self.real
        primitives.begin_reduce, SumBucket.finish, ShardBucket.collect = self.sums
        super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.events.append(("product", *sorted({name for name, whole in self.made if whole() is not None})))
        return func(*args, **(kwargs or {}))


def comes_ahead() -> None:
    """The gather of the next layer begins before this one computes, also from microbatch to microbatch; of the layer
    before this one nothing is there by then. Backward begins with the layer that forward ended with, and does not read
    the first. A bucket's sum begins as soon as its layers' gradients are there. It is waited for when the next one
    begins: that of a microbatch's last bucket travels beside the next one's forward.
    """
    made = program(3, 2 * EACH * 4, parts=2)
    run = TrainingRun(made, datasets(made), Log(None, None))
    names = {stored: path.rpartition(".")[0] for path, stored in run.model.stored.items()}
    one = [0, 1, 2, 3, 4, 5, 4, 3, 2, 1]
    events: list[tuple[str, ...]] = [("begin", "layers[0]")]
    for number, (layer, following) in enumerate(zip(one * 2, [*one * 2, -1][1:], strict=True)):
        at, product = number % len(one), ("product", f"layers[{layer}]")
        events += [("begin", f"layers[{following}]")] * (following >= 0)
        events += [product] * (1 if at < LAYERS - 1 else 3 if at == LAYERS - 1 else 2)
        came = [("came",)] * (number > 6)
        events += [*came, ("sum",)] * (at in (6, 8))
        events += [product, *came, ("sum",)] * (at == 9)  # the first layer's, whose weight is not needed
    events += [("came",), *[("wait",)] * 3]
    with _Watched(names) as watched:
        for _, batch in zip(range(2), run.loader.epoch(1), strict=False):
            watched.events.clear()
            run.passes.step(batch)
            assert watched.events == events
    assert alive._known == {}
    assert not run.model.gathers.line.here


def sums_begin_in_backward() -> None:
    """As soon as the gradients of two layers are there; below ZeRO 2 in the last microbatch alone. One of ZeRO travels
    until the next one begins, beside the forward between them too; the last one until the end of the step.
    """
    forward, backward, last = [("product",)] * LAYERS, [("product",)] * (2 * LAYERS - 1), [("wait",)] * 3
    for zero in (0, 1, 2):
        made = program(zero, 2 * EACH * 4, parts=2)
        run = TrainingRun(made, datasets(made), Log(None, None))
        came = [("came",)] * (zero > 0)
        reduced = [event for at, one in enumerate(backward) for event in [one, *[*came, ("sum",)] * (at in (3, 7, 10))]]
        first = [*backward[:4], *reduced[4 + len(came) :]]  # no other one travels yet
        each = [*first, *forward, *reduced] if zero == 2 else [*backward, *forward, *first]
        with _Watched({}) as watched:
            run.passes.step(next(run.loader.epoch(1)))
        assert watched.events == [*forward, *each, *came, *last]


def when_a_sum_is_waited_for_changes_no_bit() -> None:
    """As if the last one of each backward was waited for at its end."""
    later = Reducer.complete

    def at_once(reducer: Reducer) -> None:
        later(reducer)
        for bucket in reducer.buckets:
            bucket.collect()

    for zero in (1, 2, 3):
        weights = []
        for way in (later, at_once):
            Reducer.complete = way
            made = program(zero, 2 * EACH * 4, parts=4)
            run = TrainingRun(made, datasets(made), Log(None, None))
            for step, batch in enumerate(run.loader.epoch(1), 1):
                run.passes.step(batch)
                run.model.update(step, 8)
            weights.append(run.model.trained)
        Reducer.complete = later
        assert all(torch.equal(weights[0][path], weights[1][path]) for path in weights[0])


def levels_have_buckets_of_their_own() -> None:
    """Only of levels 1 and 2 the updated rows are brought to all."""
    made = program(2, 1_000_000)
    made.parameters = [replace(p, zero=(3, "dp")) if "[0]" in p.path else p for p in made.parameters]
    model = TrainingRun(made, datasets(made), Log(None, None)).model
    kinds = [{type(parameter) for parameter in bucket.parameters} for bucket in model.buckets]
    assert kinds == [{Zero12Parameter}, {Zero3Parameter}]
    assert len(model.sharded) == 1


def another_way_is_no_harm() -> None:
    """A pass that uses parameters in another order than the program says has them, each at its use."""
    made = program(3, 10_000)
    run = TrainingRun(made, datasets(made), Log(None, None))
    gathers, stored = run.model.gathers, list(run.model.stored.values())
    real = {s: s.gather() for s in stored}
    for way in (stored[:4], stored[:2], [stored[3], stored[0]], stored[::-1], stored):
        with gathers.during(("E", 0)):
            for s in way:
                assert torch.equal(gathers.bring(s), real[s])


@pytest.mark.parametrize(
    "what",
    [
        "follows_the_paper",
        "comes_ahead",
        "sums_begin_in_backward",
        "when_a_sum_is_waited_for_changes_no_bit",
        "levels_have_buckets_of_their_own",
        "another_way_is_no_harm",
    ],
)
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)


class _Used:
    def __init__(self, name: str, group: str = "dp", keep: bool = False) -> None:
        self.name = self.path = name
        self.group, self.dtype, self.keep = group, torch.float32, keep


def _line(*passes: list[list[_Used]]) -> list[list[list[str]]]:
    """The collectives of each unit."""
    line = GatherQueue(passes)  # type: ignore[arg-type]
    return [[[member.name for member in each.members] for each in unit.collectives] for unit in line.units]


def test_what_is_open_does_not_come_again() -> None:
    a, b, c, d = (_Used(name) for name in "abcd")
    assert _line([[a], [b, c], [d]], [[d], [c], [a]]) == [[["a"]], [["b", "c"]], [["d"]], [["c"]], [["a"]]]
    assert _line([[a], [b, c]], [[c], [b]], [[a]]) == [[["a"]], [["b", "c"]], [["a"]]]


def test_what_is_kept_comes_once_and_each_group_has_a_collective() -> None:
    a, b, c = _Used("a"), _Used("b", keep=True), _Used("c", "mp")
    assert _line([[a, b, c]], [[c, b], [a]]) == [[["a", "b"], ["c"]]]
    assert _line([[b], [a]], [[b], [a, b]]) == [[["b"]], [["a"]]]


class _Here(GatherSchedule):
    """Nothing has to be brought."""

    def bring(self, stored: Zero3Parameter) -> torch.Tensor:
        return stored.piece


def _alone() -> Zero3Parameter:
    """A parameter of two elements, on the only rank."""
    return Zero3Parameter(torch.tensor([2.0, 3.0]), (2,), rt.Mesh(dp=1)["dp"], _Here())


def test_gradients_of_all_uses_are_added() -> None:
    stored = _alone()
    (stored() * torch.tensor([1.0, 10.0]) + stored().square()).sum().backward()
    gradient = stored.take()
    assert gradient is not None
    assert gradient.tolist() == [1.0 + 4.0, 10.0 + 6.0]
    assert stored.take() is None


def test_what_each_microbatch_has_whole_counts_in_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = _alone()
    stored.once = True
    for number, factor in enumerate((5.0, 7.0)):
        monkeypatch.setattr(world, "microbatch", number)
        (stored() * factor).sum().backward()
    gradient = stored.take()
    assert gradient is not None
    assert gradient.tolist() == [5.0, 5.0]
