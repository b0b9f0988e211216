"""A generated pair on a device that says what of its memory is `reserved`: what of that a plan does not account for.

The same program with a far longer batch, whose tensors fill and empty segments of torch's allocator, is planned for a
device that has room for all, and for ones that have just enough, and less.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import CLOSE, device, needed, taken
from shardlang.folds.peak.ledger import MEANWHILE
from shardlang.folds.peak.report import lacks, peak_entry
from shardlang.folds.peak.step import step_peaks, steps_of_memory
from shardlang.folds.report import report
from shardlang.folds.reserved.footprint import Footprint, beside_tensors, footprint, gone
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source

# A feature of programs, and the device that they then have: so many bytes that all plans have room there.
RESERVED = "a device with reserved"
MEMORY = "1PB"
_LONG = re.compile(r"(^dim .*\bbatch = )(\d+)", re.MULTILINE)


def card(rng: random.Random) -> str:
    """A device, at times in nodes of a cluster."""
    said = [f"memory = {MEMORY}", f"reserved = {rng.choice(('1kB', '300MB', '1.4GB'))}"]
    said += [f"communicator = {rng.choice(('1kB', '3MB'))}"] * (rng.random() < 0.7)
    node = f"\n\ncluster pod {{\n  device = card\n  devices = {rng.choice((2, 4))}\n}}" * (rng.random() < 0.4)
    return "device card {\n  " + "\n  ".join(said) + f"\n}}{node}"


def unaccounted(text: str, ranks: int) -> str:
    """What is wrong with what plans of a pair say of their device's memory, or ""."""
    rng = random.Random(text)
    text = _LONG.sub(lambda found: f"{found[1]}{int(found[2]) * 2 ** rng.randint(0, 18)}", text)
    plan, codes = _planned(text, ranks)
    if plan is None:  # numbers of a rule that are of the batch as it was
        return "SH450 where there is room for all" if "SH450" in codes else ""
    books = () if lacks(plan) else _books(plan)  # of halves of a backward the plan says that it does not follow them
    return next((said for said in (*books, *_tight(plan, text, rng)) if said), "")


def _planned(text: str, ranks: int) -> tuple[Plan | None, list[str]]:
    """The plan, also where it does not fit, and what was reported."""
    sink, memory = Sink(), Sink()
    program = driver.check_source(Source("generated.shard", text), sink)
    plan = driver.plan_program(program, None, ranks, sink, memory) if program is not None else None
    return plan, [d.code for d in (*sink.found, *memory.found)]


def _books(plan: Plan) -> Iterator[str]:
    """What does not add up: of what comes and goes, of its replay in both kinds of segments, and of what is told."""
    has, found = device(plan.program), taken(plan)
    assert has is not None and found is not None
    for at, peak in enumerate(step_peaks(plan)):
        yield _course(plan, at, peak.bytes)
        told = sum(part["bytes"] for part in peak_entry(plan, peak)["parts"])
        yield "" if told == peak.bytes else f"the parts of {peak.bytes} bytes are {told}"
    beside = beside_tensors(plan, has.reserved, has.group, has.node)
    peaks = [peak.bytes for peak in step_peaks(plan)]
    for expandable in (True, False):
        for room in (0, 1, 2):  # more than enough, what tensors alone have, and less than that
            memory = (has.memory, peaks[found.coordinate] + beside[found.coordinate] + (8 << 20), 1)[room]
            given = footprint(plan, memory, has.reserved, expandable, has.group, has.node)
            yield _parts(given, peaks[given.coordinate], beside[given.coordinate])
            yield f"{given} is over {memory}" if given.fits and given.device > memory else ""
    total = [more + peak for more, peak in zip(beside, peaks, strict=True)]
    yield "" if total[found.coordinate] == max(total) else f"the fullest of {total} is not {found.coordinate}"
    decides = max(total) > CLOSE * has.memory or not has.expandable
    least = found.device if decides else max(total)
    right = found.device >= max(total) and max(needed(plan)) >= least
    yield "" if right else f"{needed(plan)} bytes are needed, {found.device} taken, and {total}"
    told = next((a for a in _allocators(plan) if a is not None), None)
    yield "" if told and told["device_bytes"] == found.device else f"{told} is told of {found}"


def _allocators(plan: Plan) -> Iterator[dict[str, object] | None]:
    """What the report says of each coordinate's."""
    found = report(plan)
    pipeline = found["pipeline"]
    for each in pipeline["coordinates"] if pipeline is not None else [found["per_rank"]]:
        yield each["allocator"]


def _course(plan: Plan, at: int, peak: int) -> str:
    """Nothing goes that is not there, and the most at one time is the peak."""
    there = most = 0
    tensors: dict[tuple[str, object], dict[int, list[int]]] = {}
    for what, whose, size in steps_of_memory(plan, at):
        sizes = tensors.setdefault((what, whose), {})
        if size > 0:
            sizes.setdefault(size, []).append(size)
        elif size and sum(gone(sizes, -size)) != -size:
            return f"{-size} bytes of `{what}` go at coordinate {at} that no tensors there have"
        there += 0 if what == MEANWHILE else size
        most = max(most, there + (size if what == MEANWHILE else 0))
        if there < 0:
            return f"{-there} bytes of `{what}` go at coordinate {at} that are not there"
    return "" if most == peak else f"{most} bytes come and go at coordinate {at}, and its peak is {peak}"


def _parts(found: Footprint, peak: int, beside: int) -> str:
    """Tensors fit in blocks, blocks in segments, and these and what is beside them are all of it."""
    largest = sum(each * count for _, each, count in found.largest)
    right = peak <= found.allocated <= found.reserved and largest <= found.allocated
    return "" if right and found.device == found.reserved + beside else f"{peak} bytes, {beside} beside them: {found}"


def _tight(plan: Plan, text: str, rng: random.Random) -> Iterator[str]:
    """It fits on a device of what it needs; on a smaller one it is refused where it needs more than that.

    A coordinate that is not the fullest is held to the allocator where it nearly fills the device, and may need more.
    """
    told = taken(plan)
    most = max(*needed(plan), told.device if told is not None else 0)
    for _ in step_peaks(plan):
        nearly, _ = _planned(text.replace(MEMORY, f"{most / 1000:.3f}kB"), plan.ranks)
        most = max(most, *needed(nearly)) if nearly is not None else most
    for memory in (most, most - 1, max(1000, most - rng.randint(2, 40 << 20))):
        less, codes = _planned(text.replace(MEMORY, f"{memory / 1000:.3f}kB"), plan.ranks)
        over = less is None or max(needed(less)) > memory
        if less is None or codes != ["SH450"] * over or (over and memory == most):
            yield f"{codes} on a device of {memory} bytes, and {less and max(needed(less))} are needed"
