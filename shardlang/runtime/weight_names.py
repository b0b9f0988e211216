"""How a file of weights names what a program has, and where in its tensors each parameter lies.

Reading the tensors is left to weights.py; that each parameter has one rule was checked before the
program was emitted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardlang.paths.stars import pattern, renamed


@dataclass(frozen=True)
class Named:
    """Parameters `ours` are tensors `theirs`; each `*` stands for the same index on both sides.

    transposed: rows are columns in the file. part: (i, n), the i-th of n equal parts along the
    first dim, from 1."""

    ours: str
    theirs: str
    transposed: bool = False
    part: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class FileTensor:
    """The tensor of the file that holds a parameter, as a rule says; `name` as the file has it."""

    name: str
    transposed: bool = False
    part: tuple[int, int] = (1, 1)

    def shape(self, there: Sequence[int]) -> tuple[int, ...]:
        """The shape to read of a tensor of shape `there`; its own if a part does not divide it."""
        shape = tuple(reversed(there)) if self.transposed else tuple(there)
        parts = self.part[1]
        if parts == 1 or not shape or shape[0] % parts:
            return shape
        return (shape[0] // parts, *shape[1:])

    def block(self, block: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
        """A block of a parameter of `shape` as slices of the tensor in the file."""
        found = list(block)
        if self.part[1] > 1:
            start, stop, _ = found[0].indices(shape[0])
            before = (self.part[0] - 1) * shape[0]
            found[0] = slice(before + start, before + stop)
        return tuple(reversed(found)) if self.transposed else tuple(found)

    def __str__(self) -> str:
        text = f"`{self.name}`" + " transposed" * self.transposed
        return text if self.part[1] == 1 else f"{text}, part {self.part[0]} of {self.part[1]}"


@dataclass(frozen=True)
class Names:
    """A name map. prefix: what names in the file may begin with, left out in the rules. ignored:
    names, with `*`, of tensors that the program does not need."""

    rules: Sequence[Named]
    prefix: str = ""
    ignored: Sequence[str] = ()

    def places(self, due: Iterable[str], there: Collection[str]) -> dict[str, FileTensor]:
        """The place of each of `due` among the names `there`; a missing name is as in the map."""
        full = {name.removeprefix(self.prefix): name for name in there}
        return {path: self._place(path, full) for path in due}

    def _place(self, path: str, full: Mapping[str, str]) -> FileTensor:
        for rule in self.rules:
            name = renamed(path, rule.ours, rule.theirs)
            if name is not None:
                return FileTensor(full.get(name, name), rule.transposed, rule.part)
        return FileTensor(path)

    def spare(self, name: str) -> bool:
        """Whether a tensor of the file is one that the program does not need."""
        return any(pattern(text).fullmatch(name.removeprefix(self.prefix)) for text in self.ignored)
