"""The report of a plan as text, and in it the program as it is written: a line a statement, with
layouts and what is sent. It is as wide as the terminal, elsewhere 120 columns.

A layer of one statement is shown with the statement that calls it, layers that are the same once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import Any

from shardlang.cli.plan_view.columns import END, PlanLine, beside, filled, shortened
from shardlang.cli.plan_view.parameters import parameters
from shardlang.cli.plan_view.screen import collective, heading, over, screen, sent
from shardlang.frozen.records import dataclass
from shardlang.ops.families.internal import SENT, TRANSFER
from shardlang.paths.patterns import count
from shardlang.paths.runs import called, in_runs
from shardlang.terminal.display import one_line, width

Found = Mapping[str, Any]
_AROUND = re.compile(r"\[(\d+)\.\.\d+\](?=.)")


@dataclass(frozen=True)
class Detail:
    """How much is shown: operands of operators; every layer, and conversions that send nothing."""

    operands: bool = False
    full: bool = False


def many(block: Found) -> int:
    """How many layers a block is in one of those around it."""
    return sum(map(count, map(in_the_first, block["layers"])))


def in_the_first(layers: str) -> str:
    """Equal layers in the first of those around them: `blocks[0].experts[0..8]`."""
    return _AROUND.sub(r"[\1]", layers)


def operator(found: Found, item: Found) -> Found:
    """The operator that an item of a block is, or whose conversion it is."""
    made: Found = found["operators"][item["operator"]]
    return made


@dataclass
class Statement:
    """A statement of one call: its text, the operators in it (also those of layers of one statement
    that it calls), and what is sent for it."""

    text: str
    operators: list[Found] = field(default_factory=list)
    sent: list[Found] = field(default_factory=list)


@dataclass(frozen=True)
class ShownLayers:
    """Equal layers, with the items of the first. same: equal layers that were shown before."""

    block: Found
    items: list[Statement | ShownLayers]
    same: str = ""


@dataclass(frozen=True)
class ShownStages:
    """Stages in a row with as many equal layers, which were shown before, and alike messages."""

    layers: list[ShownLayers]
    handed: Statement


@dataclass
class Reading:
    """Blocks of the report -> statements and layers."""

    found: Found
    detail: Detail
    shown: dict[int, str] = field(default_factory=dict)

    def items(self, items: Sequence[Found]) -> list[Statement | ShownLayers]:
        """In the order in which they run; a statement where its last operator does."""
        made: dict[str, Statement] = {}
        order: list[str | Statement | ShownLayers] = []
        ahead: list[Found] = []
        for item in items:
            if "layers" in item and not self.inline(item):
                order += [Statement("", [], ahead), self.layer(item)] if ahead else [self.layer(item)]
                ahead = []
                continue
            if "collective" in item and "layers" not in item:
                self._sent(item, order, made, ahead)
                continue
            text = item["text"] if "layers" in item else self._key(item)
            statement = made.setdefault(text, Statement(text))
            self._add(statement, item)
            read = {operand["name"] for o in statement.operators for operand in o["local_shapes"]["operands"]}
            alone = [entry for entry in ahead if entry["value"] not in read]
            statement.sent[:0] = [entry for entry in ahead if entry["value"] in read]
            order = [*(one for one in order if one != text), *([Statement("", [], alone)] if alone else []), text]
            ahead = []
        return [made[one] if isinstance(one, str) else one for one in order]

    def _key(self, item: Found) -> str:
        """The key of a statement within its layer: its text; for a copy of a value its name."""
        made = operator(self.found, item)
        text: str = made["name" if made["operator"] in SENT else "text"]
        return text

    def _sent(
        self, item: Found, order: list[str | Statement | ShownLayers], made: dict[str, Statement], ahead: list[Found]
    ) -> None:
        """Collectives of a value stand under its statement, else under the next that reads it."""
        entry = operator(self.found, item)["collectives"][item["collective"]]
        last = order[-1] if order else None
        own = isinstance(last, str) and any(o["name"] == entry["value"] for o in made[last].operators)
        (made[last].sent if own and isinstance(last, str) else ahead).append(entry)

    def _add(self, statement: Statement, item: Found) -> None:
        """Adds the operators of an item to its statement, and what is sent."""
        for inner in item.get("items", ()):
            self._add(statement, inner)
        if "collective" in item:
            statement.sent.append(operator(self.found, item)["collectives"][item["collective"]])
        elif "layers" not in item:
            made = operator(self.found, item)
            statement.operators.append(made)
            statement.sent += [c for c in made["collectives"] if c["phase"] == "inside"]

    def inline(self, block: Found) -> bool:
        """Whether a layer is shown with its calling statement: it has one statement, no layers."""
        if self.detail.full or many(block) > 1 or any("layers" in item for item in block["items"]):
            return False
        texts = {operator(self.found, item)["text"] for item in block["items"] if "collective" not in item}
        return len(texts) == 1 and bool(block["layers"][0])

    def layer(self, block: Found) -> ShownLayers:
        name = one_line(", ".join(in_runs(map(in_the_first, block["layers"]))))
        before = self.shown.setdefault(block["block"], name)
        if before != name and not self.detail.full:
            return ShownLayers(block, [], before)
        return ShownLayers(block, self.items(block["items"]))


def program(found: Found, room: int, detail: Detail) -> Iterator[PlanLine]:
    """The lines of the program."""
    reading = Reading(found, detail)
    said = "; below a statement what a step sends for it, forward / backward" if found["sent"] else ""
    yield PlanLine("")
    yield PlanLine(f"the program{said}", "title")
    yield from _Writing(found, room, detail).lines(reading.items(found["blocks"]), ("",), "")


@dataclass(frozen=True)
class _Writing:
    found: Found
    room: int
    detail: Detail

    def lines(
        self, items: Sequence[Statement | ShownLayers], layers: tuple[str, ...], stage: str
    ) -> Iterator[PlanLine]:
        """layers: the paths of their layers, innermost first; stage: what it shows already."""
        for item in self._joined(items):
            if isinstance(item, ShownStages):
                yield from self._in_stages(item, layers)
                continue
            if isinstance(item, Statement):
                yield from self._statement(item, layers)
                continue
            path, stages = item.block.get("written", item.block["layers"][0]), self._stages(item.block["items"])
            mine = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, sorted(stages)))}" if stages else ""
            if not path:
                yield from self.lines(item.items, layers, stage)
                continue
            yield PlanLine(_margin(layers) + self._heading(item, layers, "" if mine == stage else mine), "layer")
            yield from self.lines(item.items, (path, *layers), mine)

    def _joined(self, items: Sequence[Statement | ShownLayers]) -> Iterator[Statement | ShownLayers | ShownStages]:
        """The items, where stages are alike several of them as one."""
        at = 0
        while at < len(items):
            key, end = self._alike(items, at), at + 2
            while key is not None and self._alike(items, end) == key:
                end += 2
            if end - at < 4:
                yield items[at]
                at += 1
            else:
                layers = [item for item in items[at:end] if isinstance(item, ShownLayers)]
                yield ShownStages(layers, next(item for item in items[at:end] if isinstance(item, Statement)))
                at = end

    def _alike(self, items: Sequence[Statement | ShownLayers], at: int) -> object:
        """The same for layers that were shown before and what is handed on behind them, where these
        are alike; None for all else."""
        layer, handed = items[at : at + 2] if at + 1 < len(items) else (None, None)
        if not isinstance(layer, ShownLayers) or not layer.same or not isinstance(handed, Statement):
            return None
        if not handed.operators or handed.operators[-1]["operator"] != TRANSFER:
            return None
        sends = [line.text for entry in self._told(handed.sent) for line in self._sent(entry, "", "")]
        tensor = _tensor(handed.operators[-1]["local_shapes"]["result"])
        return layer.same, many(layer.block), self._notes(layer.block), tensor, sends

    def _in_stages(self, found: ShownStages, layers: tuple[str, ...]) -> Iterator[PlanLine]:
        first, margin = found.layers[0], _margin(layers)
        name = ", ".join(in_runs(_below(path, layers) for each in found.layers for path in each.block["layers"]))
        stages = sorted({stage for each in found.layers for stage in self._stages(each.block["items"])})
        often = f"{many(first.block)} in each of stages {stages[0]} to {stages[-1]}"
        notes = [first.block["model"], often, *self._notes(first.block), f"as {first.same}"]
        yield PlanLine(margin + one_line(f"{name}: {', '.join(notes)}"), "layer")
        tensor = _tensor(found.handed.operators[-1]["local_shapes"]["result"])
        yield from self._beside(margin, "the result of each, handed to the next stage", tensor)
        for entry in self._told(found.handed.sent):
            yield from self._sent(entry, f"{margin}  ", " of each")

    def _notes(self, block: Found) -> list[str]:
        notes = ["recomputed"] if block["recomputed"] else []
        notes += ["saved on host"] if block["saved_on_host"] else []
        return [*notes, *(["recomputed in part"] if block["recomputed_in_part"] else [])]

    def _stages(self, items: Sequence[Found]) -> set[int]:
        found: set[int] = set()
        for item in items:
            found.update(self._stages(item["items"]) if "layers" in item else {operator(self.found, item)["stage"]})
        return found - {None}

    def _heading(self, layer: ShownLayers, layers: tuple[str, ...], stage: str) -> str:
        block = layer.block
        name = ", ".join(in_runs(_below(path, layers) for path in block["layers"]))
        notes = [f"{many(block)} times"] if many(block) > 1 else []
        notes += [*self._notes(block), *([stage] if stage else [])]
        notes += [f"as {layer.same}"] if layer.same else []
        return one_line(f"{name}: {', '.join([block['model'], *notes])}")

    def _statement(self, statement: Statement, layers: tuple[str, ...]) -> Iterator[PlanLine]:
        margin = _margin(layers)
        if not statement.operators:  # what is sent for the layer that follows
            for entry in self._told(statement.sent):
                yield from self._sent(entry, margin, f" of {_below(called(entry['value']), layers)}")
            return
        text, last = statement.text, statement.operators[-1]
        if last["operator"] in SENT:
            there = f"stage {last['stage']}" if last["operator"] == TRANSFER else f"the {last['place']}"
            text = f"{_below(called(last['name']), layers)}, handed to {there}"
        yield from self._beside(margin, one_line(text), _tensor(last["local_shapes"]["result"]))
        for operator in statement.operators[:-1]:
            name = operator["name"].partition("#")[0]
            if ":" not in name and not name.endswith("return"):  # the first name of `a, b = f(x)`
                result = _tensor(operator["local_shapes"]["result"])
                yield from self._beside(f"{margin}    ", _below(called(name), layers), result)
        if self.detail.operands or self.detail.full:
            yield from self._operands(statement, f"{margin}    ", layers)
        names = {called(o["name"]) for o in statement.operators}
        for entry in self._told(statement.sent):
            name = called(entry["value"])
            of = "" if name in names and name == called(last["name"]) else f" of {_below(name, layers)}"
            yield from self._sent(entry, f"{margin}  ", of)

    def _told(self, entries: Sequence[Found]) -> list[Found]:
        """Conversions that send something; with `full` all."""
        return [e for e in entries if e["forward_bytes"] or e["backward_bytes"] or self.detail.full]

    def _sent(self, entry: Found, margin: str, of: str) -> Iterator[PlanLine]:
        what = entry["forward"] or ("backward " if entry["backward"] else "") + (entry["backward"] or entry["kind"])
        text = one_line(f"{collective(what)}{of}{over(entry['axes'])}{_groups(entry)}")
        both = f"{sent(entry['forward_bytes'])} / {sent(entry['backward_bytes'])}"
        end = min(self.room, END)
        lines = filled(text.split(" "), end - width(both) - 2, margin, f"{margin}  ")
        yield from (PlanLine(line, "sent") for line in lines[:-1])
        yield PlanLine(lines[-1] + " " * (end - width(lines[-1]) - width(both)) + both, "sent")

    def _operands(self, statement: Statement, margin: str, layers: tuple[str, ...]) -> Iterator[PlanLine]:
        for operator in statement.operators:
            for operand in operator["local_shapes"]["operands"]:
                yield from self._beside(margin, f"reads {_below(operand['name'], layers)}", _tensor(operand))
            name = f"{operator['operator']} -> {_below(operator['name'], layers)}, {operator['chosen']}"
            yield from self._beside(margin, name, _tensor(operator["local_shapes"]["result"]))

    def _beside(self, margin: str, text: str, tensor: str) -> Iterator[PlanLine]:
        """A statement with its tensor; without `full` some brackets are left out to fit."""
        short = shortened(text, self.room - width(margin) - width(tensor) - 2) if not self.detail.full else None
        return (PlanLine(line) for line in beside(margin, short or text, tensor, self.room))


def _margin(layers: tuple[str, ...]) -> str:
    return "  " * (len(layers) - 1)


def _below(path: str, layers: tuple[str, ...]) -> str:
    """A path from the innermost layer that it is shown in, of those around."""
    return next((path[len(layer) + 1 :] for layer in layers if layer and path.startswith(f"{layer}.")), path)


def _tensor(tensor: Found) -> str:
    """`[batch@dp, d]  4x512`, of one rank its part of the whole: `[batch@dp, d]  0:4, 0:512`."""
    kind = "" if tensor["dtype"] == "f32" else tensor["dtype"]
    if "slices" in tensor:
        here = ", ".join(f"{start}:{end}" for start, end in tensor["slices"])
    else:
        here = "x".join(map(str, tensor["local_shape"]))
    return f"{kind}{tensor['layout']}  {here or 'one number'}"


def _groups(entry: Found) -> str:
    """The ranks that exchange with each other, where they are few."""
    groups = [entry["group"]] if "group" in entry else entry["groups"] or []
    text = " ".join(f"{{{','.join(map(str, group))}}}" for group in groups)
    number, size = entry["group_count"], entry["group_size"]
    if len(text) > 24 and len(text.partition(" ")[0]) <= 16:
        text = f"{text.partition(' ')[0]} and {number - 1} more"
    return f" {text}" if 0 < len(text) <= 30 else f", {number:,} group{'s' * (number != 1)} of {size:,}"


def lines(found: Found, room: int, detail: Detail, part: bool) -> Iterator[PlanLine]:
    """The whole report; of a part of the model without what is about all of it."""
    first = heading(found, room) if part else screen(found, room, detail.full)
    return chain(first, program(found, room, detail), parameters(found, room, detail.full))
