"""The settings at the end of main.py -> its stages, with the functions of each and what these are
given."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Items, Local
from shardlang.matched.read_back.text import Emitted, File
from shardlang.matched.read_back.walk import NOTHING, Bound, Closure, LayerRef, LocalValue, Reader, Result, Returned

ONCE = ("before_microbatch", "before_step", "conclude")
# The functions of a file, each after those whose results it is given.
ORDER = ("before_microbatch", "before_step", "forward", "conclude", "evaluate")


@dataclass(frozen=True, slots=True)
class EmittedInput:
    """A value that a function is given: a field of the data, or one that a stage receives."""

    local: Local
    gradient: bool
    evaluate: bool
    node: ast.Call


@dataclass(frozen=True, slots=True)
class EmittedStage:
    """A stage, or the whole program. names: of its functions, by what they are for. parameters: the
    paths that it has."""

    file: File
    names: Mapping[str, str]
    parameters: Mapping[str, None]
    receives: Sequence[EmittedInput]
    fields: Sequence[EmittedInput]
    node: ast.Call


@dataclass(frozen=True, eq=False)
class Read:
    """A program as its text says it. read: functions that have been read; returned: the values that
    each stage's `forward` does."""

    text: Emitted
    read: dict[object, Result] = field(default_factory=dict)
    returned: dict[int, list[LocalValue]] = field(default_factory=dict)

    @cached_property
    def program(self) -> Mapping[str, ast.expr]:
        """The arguments of `rt.Program`."""
        call = self.text.main.assigned("program")
        if not isinstance(call, ast.Call):
            raise InternalError("the emitted text has no program")
        return named(call)

    @cached_property
    def fields(self) -> Mapping[str, EmittedInput]:
        """The fields of the data by name, in order."""
        source = self.program["data"]
        assert isinstance(source, ast.Call)
        listed = named(source)["fields"]
        assert isinstance(listed, ast.List)
        calls = [node for node in listed.elts if isinstance(node, ast.Call)]
        return {ast.literal_eval(call.args[0]): self._given(call, call.args[1:3]) for call in calls}

    def _given(self, call: ast.Call, type: Sequence[ast.expr]) -> EmittedInput:
        dtype, shape = map(ast.literal_eval, type)
        words = [word for word in call.keywords if word.arg != "words"]  # how a file is read: sends nothing
        given = {word.arg: _name_or_value(word.value) for word in words if word.arg}
        local = Local(self.text.wide(dtype), self.text.cut(shape, given))
        return EmittedInput(local, bool(given.get("gradient")), given.get("evaluate", True), call)

    @cached_property
    def stages(self) -> Sequence[EmittedStage]:
        """The stages in order; one without pipeline stages."""
        if "stages" not in self.program:
            names = {name: name for name in ("forward", "evaluate", *ONCE) if name in self.text.main.functions}
            call = self.text.main.assigned("program")
            assert isinstance(call, ast.Call)
            return [EmittedStage(self.text.main, names, self.text.named([""]), (), list(self.fields.values()), call)]
        listed = self.text.main.assigned("stages")
        assert isinstance(listed, ast.List)
        return [self._stage(node) for node in listed.elts if isinstance(node, ast.Call)]

    def _stage(self, call: ast.Call) -> EmittedStage:
        words = named(call)
        functions = {"forward": call.args[0], **{key: words[key] for key in ("evaluate", *ONCE) if key in words}}
        found = {key: node for key, node in functions.items() if isinstance(node, ast.Attribute)}
        first = found["forward"].value
        assert isinstance(first, ast.Name)
        receives = words.get("receives")
        if isinstance(receives, ast.Name):
            receives = self.text.main.assigned(receives.id)
        listed = receives.elts if isinstance(receives, ast.List) else []
        given = [self._given(node, node.args[:2]) for node in listed if isinstance(node, ast.Call)]
        patterns = ast.literal_eval(words["parameters"]) if "parameters" in words else ()
        names = ast.literal_eval(words["fields"]) if "fields" in words else ()
        return EmittedStage(
            self.text.files[first.id], {key: node.attr for key, node in found.items()},
            self.text.named(patterns), given, [self.fields[name] for name in names], call,
        )  # fmt: skip

    @cached_property
    def stage_group(self) -> AxisGroup:
        """The group of ranks of all stages."""
        call = self.text.main.assigned("schedule")
        axis = (ast.literal_eval(named(call)["axis"]),) if isinstance(call, ast.Call) else ()
        return AxisGroup(0, axis)

    @cached_property
    def users(self) -> Mapping[str, Sequence[int]]:
        """Path of a parameter or state -> the stages that use it."""
        found: dict[str, list[int]] = {}
        for at, stage in enumerate(self.stages):
            for path in stage.parameters:
                found.setdefault(path, []).append(at)
        return found

    @cached_property
    def coordinates(self) -> Sequence[int]:
        """The coordinate of each stage."""
        call = self.text.main.assigned("schedule")
        return list(ast.literal_eval(named(call)["coordinates"])) if isinstance(call, ast.Call) else [0]

    @cached_property
    def stored(self) -> Mapping[str, None]:
        """The paths of which ranks have rows alone, by ZeRO 3."""
        declared = self.text.declared.items()
        return dict.fromkeys(path for path, one in declared if one.given.get("zero", (0, ()))[0] == 3)

    @cached_property
    def shared(self) -> Sequence[str]:
        """The paths that stages of several coordinates use, in order."""
        where = self.coordinates
        found = {path for path, stages in self.users.items() if len({where[at] for at in stages}) > 1}
        return [path for path in self.text.declared if path in found]

    def functions(self, at: int) -> dict[str, Items]:
        """Name -> lines of the functions of a stage."""
        stage, found, before = self.stages[at], dict[str, Items](), dict[str, Bound]()
        for name in (name for name in ORDER if name in stage.names):
            found[name], returned = self._function(at, name, before)
            if name == "forward":
                self.returned[at] = [one for one in returned if isinstance(one, LocalValue)]
            for one in returned:
                before |= one.values if isinstance(one, Returned) else {}
        return found

    def _function(self, at: int, name: str, before: Mapping[str, Bound]) -> Result:
        """A function's lines and what it returns. before: by name what others have returned."""
        stage = self.stages[at]
        node = stage.file.functions[stage.names[name]]
        reader = Reader(self.text, stage.parameters, self.read)
        fields: list[Bound] = [LocalValue(given.local) for given in stage.fields]
        received = [given for given in stage.receives if name != "evaluate" or given.evaluate]
        values: list[Bound] = [LocalValue(given.local) for given in received]
        first: dict[str, list[Bound]] = {"before_microbatch": fields, "before_step": [], "conclude": [LayerRef("")]}
        given = first.get(name, [LayerRef(""), *values, *fields])
        further = [argument.arg for argument in node.args.args[len(given) :]]
        every = [*given, *(before.get(x, NOTHING) for x in further)]
        return reader.called(Closure(stage.file, node, {}), every)


def named(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments that a call names."""
    return {word.arg: word.value for word in call.keywords if word.arg is not None}


def _name_or_value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
