"""A plan that needs more than a device has -> SH450, with the changes that make it fit.

Nothing is offered that was not planned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from textwrap import wrap

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import Device, device, fits, is_table, needed, taken
from shardlang.folds.memory import by_coordinate
from shardlang.folds.peak.report import lacks, moment, parts
from shardlang.folds.peak.step import Peak, step_peaks
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.plan.strategy.axis_sizes import RANKS_LIMIT
from shardlang.plan.strategy.instead import layers_of, summed_over
from shardlang.step.parameters import held_bytes
from shardlang.step.stages import coordinates_of
from shardlang.terminal.display import rounded_up, size

# By how much microbatches are multiplied in the search for a number that fits, and ranks; columns
# of a note.
FACTORS, RANKS, NOTE = (2, 3, 4, 6, 8, 16), (2, 4, 8, 16), 74
# So many operators are planned in all the plans that are tried.
WORK = 20_000
# What needs so many times the memory of a device fits by no change that is tried.
HOPELESS = 100_000
_SMALLER = "take a smaller model or fewer examples in a batch, or a device that has more memory"
_UNIT = re.compile(r" (?=[kMGTP]?B\b)")  # a number and its unit are one
# The plan with further rules, one a line, on so many ranks; None where there is none.
Tried = Callable[[str, int], Plan | None]


def check_memory(plan: Plan, sink: Sink, tried: Tried | None = None) -> None:
    """SH450 if a rank needs more of its device than that has at any time of a step: names the
    largest parameter. tried: makes the plans of what is offered."""
    has = device(plan.program)
    if has is None or max(needed(plan)) <= has.memory:
        return
    at = needed(plan).index(max(needed(plan)))
    kept, peak = by_coordinate(plan)[at], step_peaks(plan)[at]
    largest = max(
        (p for p in plan.params.values() if p.value not in plan.memory_of and at in coordinates_of(plan, p.value)),
        key=lambda p: sum(held_bytes(plan, p)), default=None,
    )  # fmt: skip
    message = f"a rank needs {rounded_up(max(needed(plan)))}, and `{has.name}` has {size(has.memory)}"
    name = next((s.name for s in plan.program.strategies if s.name.text == plan.strategy), None)
    labels = [(has.span, "the device's memory"), *([(name.span, "this does not fit")] if name is not None else ())]
    if largest is None or sum(held_bytes(plan, largest)) < kept.activations:
        span, label = labels.pop()
    else:
        value = plan.graph.values[largest.value]
        message = f"{message}; `{value.path}` takes most"
        span, label = value.span, f"{_parts(plan, largest)} on each rank"
    offers = Offers(plan, has.memory, tried).lines() if tried is not None else ()
    sink.report("SH450", message, span, label, labels=labels, notes=(_note(plan, has, peak),), help=tuple(offers))


def _note(plan: Plan, has: Device, peak: Peak) -> str:
    """The moment of the peak and its parts; what is taken beside tensors. All lines fit."""
    took, more = taken(plan), [f"not counted: {lacking}"] if (lacking := lacks(plan)) else []
    beside = []
    if took is not None:
        beside = [f"for that torch takes {rounded_up(took.reserved)}", f"{rounded_up(has.reserved)} are reserved"]
        groups = f"{took.groups} group{'s' * (took.groups > 1)} of ranks"
        beside += [f"NCCL takes {rounded_up(took.nccl)} for {groups}"] * (took.nccl > 0)
    said = f"in {moment(plan, peak)} it holds {rounded_up(peak.bytes)}", parts(peak), ", ".join(beside), *more
    lines = (line for text in said if text for line in wrap(_UNIT.sub("\0", text), NOTE))
    return "\n".join(lines).replace("\0", " ")


def _parts(plan: Plan, param: ParamPlan) -> str:
    """`500 GB, with gradient and optimizer state 1.50 TB`."""
    held = held_bytes(plan, param)
    if not held.gradient and not held.optimizer:
        return rounded_up(held.itself + held.copy)
    return f"{rounded_up(held.itself)}, with gradient and optimizer state {rounded_up(sum(held))}"


def _alone(plan: Plan) -> int:
    """The bytes of parameters, copies, gradients and optimizer on the device of the rank that has
    most of them."""
    return max(kept.device - kept.activations for kept in by_coordinate(plan))


@dataclass(frozen=True)
class Offers:
    """The search for changes of a strategy with which a plan fits. plan: that does not; memory: of
    a device. Each kind of change is a list of rules, from the one that changes least on. left: how
    many operators more may be planned."""

    plan: Plan
    memory: int
    tried: Tried
    known: dict[tuple[tuple[str, ...], int], Plan | None] = field(default_factory=dict)
    left: list[int] = field(default_factory=lambda: [WORK])

    def lines(self) -> Iterator[str]:
        """The changes that fit, alone or else together; else more ranks; else what needs least."""
        if max(needed(self.plan)) > HOPELESS * self.memory:
            yield _SMALLER
            return
        yield from self._state(self._zeros())
        found = self.fitting()
        by = "" if self.plan.strategy else "in a strategy that `--strategy` names, "
        yield from (f"{by}{_joined(rules)} {'fits' if len(rules) == 1 else 'together fit'}" for rules in found)
        if not found:
            yield from self._further()

    def fitting(self) -> list[list[str]]:
        """The rules that fit alone; where there are none, the first that fit together."""
        zero, again, counts = self._zeros(), self._layers("recompute"), self._counts()
        alone, together = [zero, self._hosted()], [[zero, counts], [zero, again], [zero, again, counts]]
        if _alone(self.plan) <= self.memory:
            alone, together = [*alone, counts, again, self._layers("place saved on host")], [[again, counts], *together]
        found = [one for kind in alone if (one := self._least([kind]))]
        tried = (self._least(kinds) for kinds in together if not found and all(kinds))
        return found or [rules for rules in tried if rules][:1]

    def _further(self) -> Iterator[str]:
        """The fewest ranks, times a power of two, and what fits there; else what needs least."""
        for ranks in (factor * self.plan.ranks for factor in RANKS):
            plan = self._plan((), ranks)
            more = Offers(plan, self.memory, self.tried, left=self.left) if plan is not None else None
            if plan is not None and fits(plan, self.memory):
                yield f"`--ranks {ranks}` fits"
                return
            if more is not None and (rules := next(iter(more.fitting()), None)):
                yield f"`--ranks {ranks}` with {_joined(rules)} fits"
                return
        every = self._zeros(), self._layers("recompute"), self._counts()
        self._plan([kind[-1] for kind in every if kind])
        plans = ((plan, rules) for (rules, ranks), plan in self.known.items() if ranks == self.plan.ranks)
        needs = min(((max(needed(plan)), rules) for plan, rules in plans if plan is not None and rules), default=None)
        if needs is not None and needs[0] < max(needed(self.plan)):
            verb = "needs" if len(needs[1]) == 1 else "together need"
            yield f"nothing that was tried fits: {_joined(needs[1])} {verb} least, {rounded_up(needs[0])}"
        yield _SMALLER

    def _plan(self, rules: Sequence[str], ranks: int = 0) -> Plan | None:
        key = tuple(rules), ranks or self.plan.ranks
        if key not in self.known:
            may = self.left[0] > 0 and key[1] <= RANKS_LIMIT
            self.left[0] -= len(self.plan.graph.ops)
            self.known[key] = self.tried("\n".join(rules), key[1]) if may else None
        return self.known[key]

    def _least(self, kinds: Sequence[Sequence[str]]) -> list[str]:
        """The rule of each kind that changes least, so that they fit together; [] where none do."""
        rules = [kind[-1] for kind in kinds if kind]
        if not rules or self._lacks(rules[0]) or not self._fits(rules):
            return []
        for at, kind in enumerate(kinds):
            rules[at] = next(rule for rule in kind if self._fits([*rules[:at], rule, *rules[at + 1 :]]))
        return rules

    def _fits(self, rules: Sequence[str]) -> bool:
        plan = self._plan(rules)
        return plan is not None and fits(plan, self.memory)

    def _lacks(self, rule: str) -> bool:
        """Whether with a rule parameters, gradients and optimizer alone are too much."""
        plan = self._plan([rule])
        return plan is not None and _alone(plan) > self.memory

    def _state(self, zero: Sequence[str]) -> Iterator[str]:
        """The least ZeRO with which parameters, gradients and optimizer fit, where they alone do
        not."""
        before, plans = _alone(self.plan), ((rule, self._plan([rule])) for rule in zero)
        after = ((rule, _alone(plan)) for rule, plan in plans if plan is not None)
        for rule, left in [each for each in after if before > self.memory >= each[1]][:1]:
            shown = f"`{rule}` leaves {rounded_up(left)} of it"
            yield f"parameters, gradients and optimizer alone take {rounded_up(before)}: {shown}"

    def _zeros(self) -> list[str]:
        axes, now = summed_over(self.plan), max((p.zero for p in self.plan.params.values()), default=0)
        over = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
        every = [f"zero {level} over {over}" for level in range(now + 1, 4) if axes]
        return [rule for rule in every if self._plan([rule]) is not None]

    def _counts(self) -> list[str]:
        """The numbers of microbatches, up to the greatest that there can be."""
        every = [f"microbatches {self.plan.microbatches * factor}" for factor in FACTORS]
        while every and self._plan([every[-1]]) is None:
            every.pop()
        return every

    def _layers(self, what: str) -> list[str]:
        layers = layers_of(self.plan.graph)
        return [f"at {', '.join(layers)}: {what}"] if layers else []

    def _hosted(self) -> list[str]:
        """The largest tables on the host."""
        graph = self.plan.graph
        tables = [p for p in self.plan.params.values() if is_table(self.plan, p) and p.value not in self.plan.memory_of]
        largest = max(tables, key=lambda p: sum(held_bytes(self.plan, p)), default=None)
        return [f"at {graph.values[largest.value].path}: place on host"] if largest is not None else []


def _joined(rules: Sequence[str]) -> str:
    """`` `a`, `b` and `c` ``."""
    *first, last = [f"`{rule}`" for rule in rules]
    return f"{', '.join(first)} and {last}" if first else last
