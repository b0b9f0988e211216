"""The overlaps of an emitted program: the table of specs/overlap.md, as the time of a step
needs it. tests/cost/overlaps.py names the function of the runtime that makes each true, and the
test that sees it. Programs of other systems have tables of their own."""

from __future__ import annotations

from dataclasses import replace

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """How an executor orders what travels and what computes.

    ahead: so many units the gathers of ZeRO 3 begin before they are needed. dual: a collective of
    backward travels beside the gradients of weights that it names. reductions: sums of gradients
    travel beside backward. one_sum: of ZeRO's sums one travels at a time, and is waited for when
    the next bucket begins, be it in a later backward. posted: so many actions a receive is posted
    before its own. copies: what is gathered and summed is packed and unpacked. published: gathers
    of ZeRO 1 and 2 are waited for after the update. saved: what layers save on the host travels
    beside what they compute."""

    ahead: int = 1
    dual: bool = True
    reductions: bool = True
    one_sum: bool = True
    posted: int = 1
    copies: bool = True
    published: bool = True
    saved: bool = True


EMITTED = Overlap()


def emitted(asynchronous: bool) -> Overlap:
    """The overlaps of an emitted program on a device. One that computes what it is given at once,
    the CPU, computes nothing while it sends (`overlaps` in runtime/device.py)."""
    return EMITTED if asynchronous else replace(EMITTED, dual=False)
