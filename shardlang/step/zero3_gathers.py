"""The parameters that ZeRO 3 gathers together, in which order, and how often in a step.

Parameters come a layer at a time: a layer of an array, or neighbours outside of arrays up to the
bytes of one. The emitted program says the order, and the runtime (runtime/state/zero3.py) begins
each gather while the layer before it computes. A layer that is there is not gathered again: that
which forward ends with and backward begins with comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import NamedTuple

from shardlang.facts.actions import BACKWARD, FORWARD, TO_INPUTS, TO_PARAMETERS, BackwardCut
from shardlang.facts.gathers import GatherState
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import InTurn, Op
from shardlang.ops.families.internal import TRANSFER
from shardlang.paths.patterns import count
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import Plan
from shardlang.step.passes import StagePasses, passes
from shardlang.step.stages import stages_by_coordinate
from shardlang.step.units import parameters_read

Params = frozenset[InTurn]


@dataclass
class GatherCounts:
    """Parameter -> how often it comes in forward and in backward, those of all layers of a run
    together; the most bytes that are there of those that come, at one time."""

    forward: Counter[int]
    backward: Counter[int]
    most: int = 0


@dataclass(frozen=True, slots=True)
class GatherUnit:
    """Parameters (value ids) that come together. layer: the layer of an array that they are all of,
    "" outside of arrays."""

    layer: str
    params: frozenset[int]


class Brought(NamedTuple):
    """The units that come in a pass (a kind of action, and a stage), in order. there: the one
    before. after: the next, in a later pass."""

    at: tuple[str, int]
    there: Params
    units: tuple[Params, ...]
    after: Params | None


class Orders:
    """passes: kind of action and stage -> the units of it, in order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cut = {value: plan.graph.values[value].path for value, param in plan.params.items() if param.zero == 3}
        self.passes: dict[tuple[str, int], list[GatherUnit]] = {}
        if not self.cut:
            return
        for stage, found in passes(plan).items():
            forward = (value for step in found.steps for value in parameters_read(plan, step))
            backward = [value for work in found.backward for value in found.parameters(work)]
            self.passes[FORWARD, stage] = self._units(stage, forward)
            self.passes[BACKWARD, stage] = self._units(stage, backward)
            self.passes.update(self._halves(found, {*backward}))

    def _halves(self, of: StagePasses, read: Set[int]) -> Mapping[tuple[str, int], list[GatherUnit]]:
        """Those of the two parts of a backward that reads so many. The second part comes to each
        parameter by itself, the last one first, but for those that are used several times, which
        are of the first."""
        graph, whole, stage = self.plan.graph, self.passes[BACKWARD, of.stage], of.stage
        if of.halves is not BackwardCut.CUT:
            each = {kind: of.halves.amounts_to(kind) for kind in (TO_INPUTS, TO_PARAMETERS)}
            return {(kind, stage): whole if made else [] for kind, made in each.items()}
        ops = [graph.ops[self.plan.ops[step.index].op] for step in of.steps if step.kind == "op"]
        apart = read - self._several(ops)
        later = self._units(stage, [p for p in reversed(graph.params) if p in apart])
        return {(TO_INPUTS, stage): whole, (TO_PARAMETERS, stage): later}

    def _several(self, mine: Sequence[Op]) -> set[int]:
        """The parameters that meet the way from what a stage receives at several of its operators,
        and those that come to such an operator with one of them."""
        plan, values = self.plan, self.plan.graph.values
        fused = {plan.ops[f.product].op: plan.ops[f.addition].op for f in fusions(plan).values()}
        way, of = set[int](), {value: {value} for value in plan.params if values[value].gradient}
        meets: dict[int, set[int]] = {}  # operator -> parameters
        for op in mine:
            given = {p for value in op.operands if value not in way for p in of.get(value, ())}
            on = op.operator == TRANSFER or not way.isdisjoint(op.operands)
            if on:
                way.update(value for value in op.results if values[value].gradient)
                meets.setdefault(fused.get(op.id, op.id), set()).update(given)
            else:
                of.update(dict.fromkeys(op.results, given))
        often = Counter(value for params in meets.values() for value in params)
        found = {value for value, times in often.items() if times > 1}
        while more := {v for params in meets.values() if not params.isdisjoint(found) for v in params} - found:
            found |= more
        return found

    @cached_property
    def _layer(self) -> Mapping[int, str]:
        """Parameter -> the outermost layer of an array that it is in and that another one is like;
        else the innermost, "" outside of arrays."""
        arrays = {value: [path[: at + 1] for at, c in enumerate(path) if c == "]"] for value, path in self.cut.items()}
        forms: dict[str, list[object]] = {}
        for value, layers in arrays.items():
            for layer in layers:
                shape = self.plan.graph.values[value].type.shape
                forms.setdefault(layer, []).append((self.cut[value][len(layer) :], shape))
        alike = Counter((layer.rpartition("[")[0], tuple(form)) for layer, form in forms.items())
        several = {layer for layer, form in forms.items() if alike[layer.rpartition("[")[0], tuple(form)] > 1}
        return {value: next((x for x in own if x in several), ["", *own][-1]) for value, own in arrays.items()}

    @cached_property
    def _members(self) -> Mapping[str, frozenset[int]]:
        """Layer of an array -> its parameters."""
        found: dict[str, set[int]] = {}
        for value, layer in self._layer.items():
            found.setdefault(layer, set()).add(value)
        return {layer: frozenset(mine) for layer, mine in found.items()}

    @cached_property
    def parted(self) -> frozenset[str]:
        """The layers of arrays with other such layers in them, that come by themselves."""
        ends = ((layer, at + 1) for layer in self._members for at, c in enumerate(layer[:-1]) if c == "]")
        return frozenset(layer[:end] for layer, end in ends)

    @cached_property
    def _enough(self) -> int:
        """Bytes from which on no layer is added to a unit outside of arrays: those of the largest
        layer of an array, without any those of the largest of all."""
        layers = [self.bytes_of(mine) for layer, mine in self._members.items() if layer]
        owned: dict[str, list[int]] = {}
        for value in self.cut if not layers else ():
            owned.setdefault(self._owner(value), []).append(value)
        return max(self.bytes_of(mine) for mine in owned.values()) if owned else max(layers)

    def _owner(self, value: int) -> str:
        """The layer that a parameter is declared in."""
        return self.cut[value].rpartition(".")[0]

    def bytes_of(self, params: Iterable[int]) -> int:
        """Bytes of parameters once they are gathered, on one rank."""
        return sum(self.plan.local_bytes(value, self.plan.params[value].stored) for value in params)

    def _units(self, stage: int, uses: Iterable[int]) -> list[GatherUnit]:
        found: list[tuple[str, dict[int, None]]] = []
        for value in (value for value in uses if value in self.cut):
            layer = self._layer[value]
            last = found[-1] if found else ("", {})
            another = not layer and self._owner(value) not in map(self._owner, last[1])
            full = another and self.bytes_of(last[1]) >= self._enough
            if not found or last[0] != layer or full:
                found.append((layer, {}))
            found[-1][1][value] = None
        whole = ((layer, self._here(stage, self._members[layer]) if layer else mine) for layer, mine in found)
        return [GatherUnit(layer, frozenset(params)) for layer, params in whole]

    def _here(self, stage: int, params: frozenset[int]) -> frozenset[int]:
        """Those of them that a stage uses."""
        return frozenset(p for p in params if stage in self.plan.stages_of(p))

    @cached_property
    def steps(self) -> Mapping[tuple[int, ...], GatherCounts]:
        """The stages of a coordinate -> what is gathered there in a step; not what is kept, which
        comes once."""
        rows = ([(action.kind, action.stage) for action in row] for row in self.plan.actions)
        return {mine: self._counted(row) for mine, row in zip(stages_by_coordinate(self.plan), rows, strict=True)}

    def _counted(self, passes: Iterable[tuple[str, int]]) -> GatherCounts:
        line = self.line(passes)
        times = Counter((each.at, each.there) for each in line)
        brought = {(each.at, each.there): each.units for each in line}
        found = GatherCounts(Counter(), Counter())
        for key, often in times.items():
            for params in brought[key]:
                of = found.forward if key[0][0] == FORWARD else found.backward
                for value, _ in params:
                    of[value] += often
            # One is there, and is still unpacked or the next one is on its way.
            sizes = [self.bytes_of(value for value, _ in params) for params in (key[1], *brought[key])]
            found.most = max(found.most, *(a + max(a, b) for a, b in zip(sizes, [*sizes[1:], 0], strict=True)))
        return found

    def line(self, passes: Iterable[tuple[str, int]]) -> list[Brought]:
        """The units of passes that follow each other."""
        known: dict[tuple[tuple[str, int], Params], tuple[Params, ...]] = {}
        found, there, after = list[Brought](), Params(), None
        for at in passes:
            if (at, there) not in known:
                known[at, there] = self._brought(at, there)
            found.append(Brought(at, there, known[at, there], None))
            there = known[at, there][-1] if known[at, there] else there
        for number in range(len(found) - 1, -1, -1):
            units = found[number].units
            found[number] = found[number]._replace(after=after)
            after = units[0] if units else after
        return found

    def _brought(self, at: tuple[str, int], there: Params) -> tuple[Params, ...]:
        """The gathers of a pass. there: what is there before it."""
        found, gathered = list[Params](), GatherState(there)
        for unit in self.passes.get(at, ()):
            turns = range(count(unit.layer))
            for turn in turns if at[0] == FORWARD else turns[::-1]:
                params = frozenset((p, turn) for p in unit.params if not self.plan.params[p].keep)
                found += [params] if gathered.brings(params) else []
        return tuple(found)


@remembered
def orders(plan: Plan) -> Orders:
    """The order of a plan's gathers."""
    return Orders(plan)
