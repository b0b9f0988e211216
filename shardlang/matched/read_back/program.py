"""Emitted files -> the program that they are: its parameters and states, and its stages with their
functions and what these are given."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Items, Local, Size, Uneven
from shardlang.matched.read_back.text import File
from shardlang.matched.read_back.walk import Closure, EmittedFiles, EmittedLayer, Made
from shardlang.paths.patterns import covered, expanded
from shardlang.types.layout import chunk_sizes

# The functions of a file, each after those whose results it is given.
ORDER = ("before_microbatch", "before_step", "forward", "conclude", "evaluate")
_STEPS = re.compile(r"(\d+)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter or state, or a value that a function is given, as the text declares it: its part
    on a rank, and its arguments by name."""

    local: Local
    given: Mapping[str, Any]
    node: ast.Call
    trained: bool = False

    @property
    def learns(self) -> bool:
        """Whether it is trained, and not frozen."""
        return self.trained and not self.given.get("frozen")


@dataclass(frozen=True, slots=True)
class EmittedStage:
    """A stage, or the whole program. parameters: the paths that it has; receives, fields: what
    `forward` is given."""

    functions: Mapping[str, Closure]
    parameters: Collection[str]
    layers: EmittedLayer
    receives: Sequence[Variable]
    fields: Sequence[Variable]
    made: Made


@dataclass(frozen=True, eq=False)
class Read:
    """A program as its text says it. returned: what the `forward` of each stage does."""

    texts: EmittedFiles
    returned: dict[int, Sequence[Any]] = field(default_factory=dict)

    @cached_property
    def main(self) -> File:
        return self.texts.file("main")

    @cached_property
    def program(self) -> Made:
        """The call of `rt.Program`."""
        found = self.main.names.get("program")
        if not isinstance(found, Made):
            raise InternalError("the emitted text has no program")
        return found

    @cached_property
    def schedule(self) -> Made | None:
        """The call of `rt.Schedule`, where there are stages."""
        return self.program.words.get("pipeline")

    @cached_property
    def declared(self) -> Mapping[str, Variable]:
        """Path -> the parameter or state; those of equal layers are one."""
        listed = [each for name in ("parameters", "states") for each in self.program.words.get(name, ())]
        return {path: one for each in listed for path, one in self._declared(each)}

    def _declared(self, made: Made) -> Iterator[tuple[str, Variable]]:
        if made.name != "each":
            path, shape, words = *made.args[:2], made.words
            dtype = words.get("use") or words.get("dtype") or "f32"
            yield path, Variable(self._local(dtype, shape, words), words, made.node, made.name == "Parameter")
            return
        below = [one for tensor in made.args[1:] for one in self._declared(tensor)]
        yield from ((f"{layer}.{path}", one) for layer in expanded(made.args[0]) for path, one in below)

    @cached_property
    def _model(self) -> EmittedLayer:
        """The whole model."""
        found = EmittedLayer()
        for path, one in self.declared.items():
            found.put(_steps(path), one.local, [path])
        return found

    def _at(self, path: str) -> Any:
        """The layer, or the type of a parameter or state, at a path; None where there is none."""
        found: Any = self._model
        for step in _steps(path):
            found = found.get(step) if isinstance(found, EmittedLayer) else None
        return found

    def _each(self, patterns: Iterable[str]) -> Sequence[str]:
        """The layers, arrays of layers and declared paths that patterns name."""
        each = [path for pattern in patterns for path in expanded(pattern)]
        if not any("*" in path for path in each):
            return each
        those = covered(each, self.declared)
        return [path for path in self.declared if path in those]

    def named(self, patterns: Iterable[str]) -> dict[str, None]:
        """The declared paths that patterns name."""
        found = ((name, self._at(name)) for name in self._each(patterns))
        each = (at.paths if isinstance(at, EmittedLayer) else [name] * (at is not None) for name, at in found)
        return dict.fromkeys(itertools.chain.from_iterable(each))

    def _given(self, made: Made, dtype: str, shape: Sequence[int]) -> Variable:
        return Variable(self._local(dtype, shape, made.words), made.words, made.node)

    def _local(self, dtype: str, shape: Sequence[int], words: Mapping[str, Any]) -> Local:
        """The part on a rank of a whole shape, by the arguments `cut`, `sizes` and `mesh`."""
        wide = "f64" if dtype == "f32" and self.program.words["precision"] == "f64" else dtype
        mesh, found = words.get("mesh", self.texts.meshes[0]), list[Size]()
        for dim, size in enumerate(shape):
            group = mesh.group(words.get("cut", {}).get(dim, ()))
            degree = self.texts.degree(group)
            sizes = words.get("sizes", {}).get(dim) or (
                chunk_sizes(size, degree) if size % degree else (size // degree,)
            )
            found.append(Uneven(sizes, group) if len(set(sizes)) > 1 else size // degree)
        return Local(wide, tuple(found))

    @cached_property
    def stages(self) -> Sequence[EmittedStage]:
        """The stages in order; one without pipeline stages."""
        fields = {
            made.args[0]: self._given(made, *made.args[1:3]) for made in self.program.words["data"].words["fields"]
        }
        if self.schedule is None:
            return [self._stage(self.program, self.program.words, [*self._model], list(fields.values()))]
        return [
            self._stage(made, {**made.words, "forward": made.args[0]}, made.words.get("parameters", ()),
                        [fields[name] for name in made.words.get("fields", ())])
            for made in self.program.words["stages"]
        ]  # fmt: skip

    def _stage(
        self, made: Made, functions: Mapping[str, Any], patterns: Iterable[str], fields: Sequence[Variable]
    ) -> EmittedStage:
        layers, names = EmittedLayer(), self._each(patterns)
        for name in names:
            layers.put(_steps(name), self._at(name))
        receives = [self._given(each, *each.args) for each in made.words.get("receives", ())]
        own = {name: functions[name] for name in ORDER if name in functions}
        return EmittedStage(own, self.named(names), layers, receives, fields, made)

    @cached_property
    def stage_group(self) -> AxisGroup:
        """The group of ranks of all stages."""
        return AxisGroup(0, () if self.schedule is None else (self.schedule.words["axis"],))

    @property
    def coordinates(self) -> Sequence[int]:
        """The coordinate of each stage."""
        return [0] if self.schedule is None else self.schedule.words["coordinates"]

    def functions(self, at: int) -> dict[str, Items]:
        """Name -> lines of the functions of a stage."""
        stage, found, before = self.stages[at], dict[str, Items](), dict[str, Any]()
        fields = [each.local for each in stage.fields]
        first: Mapping[str, list[Any]] = {"before_microbatch": fields, "before_step": [], "conclude": [EmittedLayer()]}
        for name, function in stage.functions.items():
            received = [x.local for x in stage.receives if name != "evaluate" or x.given.get("evaluate", True)]
            given = first.get(name, [stage.layers, *received, *fields])
            further = [before.get(x.arg) for x in function.node.args.args[len(given) :]]
            found[name], returned = self.texts.called(function, [*given, *further])
            each = returned if isinstance(returned, tuple) else (returned,)
            if name == "forward":
                self.returned[at] = each
            for values in each:
                before |= values if isinstance(values, dict) else {}
        return found


def _steps(path: str) -> list[str | int]:
    return [int(index) if index else name for index, name in _STEPS.findall(path)]


def read(files: Mapping[str, str]) -> Read:
    """The program of emitted files, by name with ending."""
    each = {name.removesuffix(".py"): File(name, text, ast.parse(text.encode())) for name, text in files.items()}
    return Read(EmittedFiles(each))
