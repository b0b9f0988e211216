"""Faults of the cost model and of the search: seconds of a step, bounds, what is tried and what is told."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = (
    Fault("a thinner network is as fast", "seconds between racks", "cost/collectives.py",
          "hardware.network * hardware.shares.network / placing.oversubscription",
          "hardware.network * hardware.shares.network", ("cost/test_collectives.py",)),
    Fault("sums of gradients are not waited for", "seconds before the update", "cost/timeline.py",
          "for (kind, axes), end in sorted(self.sums.items(), key=lambda each: each[1]):",
          "for (kind, axes), end in ():",
          ("cost/test_timeline.py",)),
    Fault("a bound counts a microbatch more", "the gap, and points that fall out", "search/deep/bound.py",
          "own = sum(of.count * forward[s]", "own = sum((of.count + 1) * forward[s]",
          ("search/test_bound.py::test_a_bound_is_no_more_than_the_prediction",)),
    Fault("the slowest comes first", "the best of all points", "search/outer.py",
          "key=lambda found: found.seconds)[: 2", "key=lambda found: -found.seconds)[: 2",
          ("search/test_tune.py::test_the_least_of_all_points_is_found",)),
    Fault("strategies of the file do not compete", "what is found beside them", "search/outer.py",
          "    for found in given:\n        best.add(found)\n", "",
          ("search/test_tune.py::test_nothing_of_the_file_is_faster",)),
    Fault("a plan keeps the buckets of the one like it", "plans that share layouts", "plan/planner.py",
          "params=params, bucket_bytes=resolved.bucket_bytes,", "params=params,",
          ("search/test_tune.py::test_plans_that_differ_in_zero_and_buckets_share_their_layouts",)),
    Fault("a conversion for one reader is free", "what operators choose", "search/splits/integer_program.py",
          "self.cost[flows_there[0]] = seconds * UNIT", "self.cost[flows_there[0]] = 0.0",
          ("search/test_modes.py::test_no_options_of_a_small_graph_take_less",)),
    Fault("what returns without a name is pinned", "pins that operators choose", "search/splits/written.py",
          'named = not {":", "#"} & {*path} and path.rpartition(".")[2] != "return"',
          'named = not {":", "#"} & {*path}',
          ("search/test_tune.py::test_pins_name_values",)),
    Fault("the search goes on where nothing fits", "the budget", "search/outer.py",
          "if best.fitting.spent() > best.wanted.budget:",
          "if best.found and best.fitting.spent() > best.wanted.budget:",
          ("search/test_tune.py::test_the_budget_ends_where_nothing_fits",)),
)  # fmt: skip
