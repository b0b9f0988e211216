"""The overlaps that a predicted step counts on, each with the function of the runtime that makes it true, and the test
that sees it."""

from __future__ import annotations

from typing import NamedTuple


class OverlapFact(NamedTuple):
    """A fact. field: of `Overlap` ("" where nothing runs beside it). function: `file: name` of the
    runtime. test: `file: name`, which breaks if that changes."""

    what: str
    field: str
    function: str
    test: str


_GATHERS, _ORDER = "tests/runtime/test_gathers.py", "tests/cost/test_runtime_order.py"
_BESIDE, _PIPELINE = "tests/runtime/test_beside.py", "tests/runtime/test_pipeline.py"
_SENT = "tests/runtime/test_saved_on_host.py"
LINES = (
    OverlapFact("conversions and statistics are waited for", "", "runtime/comm/collectives.py: _convert",
         f"{_BESIDE}: the_sum_begins_before_the_gradients_of_weights"),
    OverlapFact("the gradient of a product's operand travels beside that of its weight", "dual",
         "runtime/comm/collectives.py: _Pair", f"{_BESIDE}: the_sum_begins_before_the_gradients_of_weights"),
    OverlapFact("parameters of the next unit travel while one is used", "ahead", "runtime/state/zero3.py: _open",
         f"{_GATHERS}: comes_ahead"),
    OverlapFact("a bucket starts when its last gradient is there", "reductions", "runtime/state/buckets.py: _hook",
         f"{_GATHERS}: sums_begin_in_backward"),
    OverlapFact("of ZeRO's sums one travels at a time, also beside the next microbatch's forward", "one_sum",
         "runtime/state/buckets.py: _launch", f"{_GATHERS}: sums_begin_in_backward"),
    OverlapFact("a receive is posted an action ahead", "posted", "runtime/messages.py: _posts",
         f"{_PIPELINE}: receives_are_posted_an_action_ahead"),
    OverlapFact("what is gathered and summed is copied", "copies", "runtime/state/zero.py: packed",
         "tests/device/launches.py: packs"),
    OverlapFact("gathers of ZeRO 1 and 2 begin after the update, the first one read last", "published",
         "runtime/state/zero.py: publish", f"{_ORDER}: test_updated_rows_are_waited_for_when_they_are_read"),
    OverlapFact("what layers save on the host travels beside what they compute", "saved",
         "runtime/state/saved_on_host.py: _ended", f"{_SENT}: test_what_is_saved_travels_beside_the_next_layer"),
)  # fmt: skip
