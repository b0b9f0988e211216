"""The items of a plan: all of its operations and all that it sends, no more and no less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from shardlang.cost.planned import work
from shardlang.cost.work import Attention, Collective, Item, Pass, Product, Workload
from shardlang.facts.actions import BackwardCut
from shardlang.folds.flops import step_flops
from shardlang.folds.traffic import sent
from shardlang.plan.plan import Plan
from tests.cost.plans import NAMES, PLANS, plan_of, small


def items(passed: Pass) -> Iterator[tuple[Item, int]]:
    for segment in passed:
        for item, count in segment.items.items():
            yield item, count * segment.times


def sums(work: Workload, stages: tuple[int, ...]) -> Counter[str]:
    """Bytes that a coordinate sends in a step, by what and when."""
    found: Counter[str] = Counter()
    for stage in (work.stages[at] for at in stages):
        for way, passed in (("forward", stage.forward), ("backward", stage.backward)):
            for item, count in items(passed):
                if isinstance(item, Collective):
                    found[f"values {way}"] += item.bytes * count * work.microbatches
        for segment in stage.backward:
            for reduction in segment.reductions:
                cut = any(kind == "reduce_scatter" for kind, *_ in reduction.parts)
                for kind, _, size in reduction.parts:  # what is summed of rows is so at the end of the step
                    each = reduction.each and (kind == "reduce_scatter" or not cut)
                    found["gradients"] += segment.times * (work.microbatches if each else 1) * size
    return found


def planned_sums(plan: Plan, stages: tuple[int, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in sent(plan):
        if each.what == "values" and "send" not in each.collectives and not each.stages.isdisjoint(stages):
            found["values forward"] += each.forward_bytes
            found["values backward"] += each.backward_bytes
        elif each.what == "gradients" and not each.stages.isdisjoint(stages):
            found["gradients"] += each.backward_bytes
    return found


@pytest.mark.parametrize("make", PLANS, ids=NAMES)
def test_items_send_what_the_plan_sends(make: Callable[[], Plan]) -> None:
    plan = make()
    made = work(plan)
    for coordinate in made.coordinates:
        found, expected = sums(made, coordinate.stages), planned_sums(plan, coordinate.stages)
        for item, count in (*coordinate.ahead.items(), *coordinate.after.items()):
            if isinstance(item, Collective) and item.place.layer != "step":
                found["values forward"] += item.bytes * count
            elif isinstance(item, Collective) and item.dtype != "f64":  # a sum with other stages
                found["gradients"] += item.bytes * count
        assert {what: round(size) for what, size in found.items() if size} == +expected


@pytest.mark.parametrize("make", PLANS, ids=NAMES)
def test_items_compute_what_the_plan_computes(make: Callable[[], Plan]) -> None:
    plan = make()
    made = work(plan)
    total = 0
    for stage in made.stages:
        for passed in (stage.forward, stage.backward):
            for item, count in items(passed):
                if isinstance(item, Product | Attention) and item.phase != "again":
                    total += item.flops * count * made.microbatches
    ranks_of_a_stage = plan.ranks // (len(made.coordinates) if plan.pipeline is not None else 1)
    assert total * ranks_of_a_stage == step_flops(plan.graph)


def test_a_layer_is_computed_again_up_to_what_torch_needs() -> None:
    """Torch's checkpoint ends before a product that is the last to save anything: it saves what it reads. So each
    layer computes one product less again than its forward has (torch.utils.checkpoint, early stop)."""
    plan = small("mesh dp = 2; split batch over dp; at blocks[*]: recompute", 2)
    (stage,) = work(plan).stages
    first = Counter(item.place.path for item, n in items(stage.forward) if isinstance(item, Product) for _ in range(n))
    again = Counter(
        item.place.path
        for item, n in items(stage.backward)
        if isinstance(item, Product) and item.phase == "again"
        for _ in range(n)
    )
    layers = Counter({path: n for path, n in first.items() if "blocks[*]" in path})
    assert layers - again == {path: n for path, n in layers.items() if path.endswith("down.return")} and again


FROZEN = """
use std.nn: Linear

dim batch = 64, pixels = 64, hidden = 128, classes = 10

model Net {
  layer up = Linear(pixels, hidden)
  layer down = Linear(hidden, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    return image |> up |> relu |> down
  }
}

strategy s {
  mesh pp = 2
  stages over pp {
    0: up
    1: down
  }
  microbatches 4
  schedule "zero_bubble"
}

train {
  model = Net()
  data = digits(split = "train", batch = batch)
  loss = cross_entropy(model(image), label)
  optimizer = sgd(lr = 0.1)
  FREEZE
  epochs = 1
}
"""


def test_a_backward_that_goes_no_further_is_all_in_its_second_part() -> None:
    """As runtime/step/split_backward.py has it: no gradient goes back to a stage that learns nothing."""
    cuts = [
        [stage.cut for stage in work(plan_of(FROZEN.replace("FREEZE", freeze), "s", 2)).stages]
        for freeze in ("", "freeze at up")
    ]
    assert cuts == [[BackwardCut.ALL_SECOND, BackwardCut.CUT], [BackwardCut.ALL_SECOND] * 2]
