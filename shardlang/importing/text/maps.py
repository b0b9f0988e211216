"""The name map of an imported model: each parameter's path, and the module's tensor that it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from shardlang.disk.overwrite_guard import NAMES_MARK
from shardlang.errors import RunError
from shardlang.importing.bodies.body import Body, Layer
from shardlang.importing.steps.nodes import Stored
from shardlang.importing.text.names import layer_name, own_name

# The number of a layer in a list.
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class MapLine:
    """A parameter at `ours` is `stored`; in `pattern` and `theirs` indexes of arrays are stars."""

    ours: str
    stored: Stored
    pattern: str
    theirs: str

    def __str__(self) -> str:
        text = f"{self.pattern} = {self.theirs}{' transposed' * self.stored.transposed}"
        number, count = self.stored.part
        return text if count == 1 else f"{text} part {number} of {count}"


def lines(root: Body) -> list[MapLine]:
    """A line for each parameter and state."""
    return list(_lines(root, "", "", ()))


def _lines(body: Body, ours: str, pattern: str, stars: tuple[int, ...]) -> Iterator[MapLine]:
    for own in body.own:
        name = own_name(body, own)
        parts = own.stored.name.split(".")
        theirs = ".".join("*" if at in stars else part for at, part in enumerate(parts))
        yield MapLine(ours + name, own.stored, pattern + name, theirs)
    for layer in body.layers:
        name = layer_name(body, layer)
        index, star, at = _index(layer)
        yield from _lines(layer.body, f"{ours}{name}{index}.", f"{pattern}{name}{star}.", stars + at)


def _index(layer: Layer) -> tuple[str, str, tuple[int, ...]]:
    if layer.array is None:
        return "", "", ()
    return f"[{layer.index}]", "[*]", (layer.path.count("."),)


def text(found: list[MapLine], tensors: Mapping[str, Tensor], name: str, unused: Iterable[str]) -> str:
    """The file, with `tensors` those of the state_dict, and parameters that the program does not
    use. RunError SH606 where a tensor would have two homes, or none though the model reads it."""
    seen: dict[tuple[str, tuple[int, int]], str] = {}
    for line in found:
        home = seen.setdefault((line.stored.name, line.stored.part), line.ours)
        if home != line.ours or line.stored.name not in tensors:
            fact = f"`{line.stored.name}` of the module would be both `{home}` and `{line.ours}`"
            if line.stored.name not in tensors:
                fact = f"`{line.ours}` is `{line.stored.name}`, which state_dict does not have"
            raise RunError("SH606", fact, help="register it as a parameter or a persistent buffer of one module")
    parts = [f"{NAMES_MARK} `{name}` from the state_dict of its module.\n\n"]
    parts += [f"{line}\n" for line in dict.fromkeys(map(str, found))]
    read = {line.stored.name for line in found}
    homes = {id(tensors[other]): other for other in read}
    tied = {other: homes[id(each)] for other, each in tensors.items() if other not in read and id(each) in homes}
    if tied:
        parts.append("\n# Names of tensors that have another name above.\n")
        parts += [f"tied {other} = {home}\n" for other, home in tied.items()]
    spare, dropped = [other for other in tensors if other not in read and other not in tied], set(unused)
    for names, why in (
        ([other for other in spare if other not in dropped],
         "What the program does not need: constants that it computes, and counts that change no result."),
        ([other for other in spare if other in dropped], "Parameters of the module that no result depends on."),
    ):  # fmt: skip
        if names:
            parts.append(f"\n# {why}\n")
            parts += [f"ignore {other}\n" for other in _starred(names, read)]
    return "".join(parts)


def _starred(names: Sequence[str], read: set[str]) -> list[str]:
    """Names with stars for the numbers of layers, where no name that is read would fit."""
    taken = {_INDEX.sub("*", name) for name in read}
    stars = [_INDEX.sub("*", name) for name in names]
    return list(dict.fromkeys(name if star in taken else star for name, star in zip(names, stars, strict=True)))
