"""The plain values that a plan is turned into for an editor. They need nothing of the planner, so
that a server can start without it."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.editor.mistakes import ShownMistake
from shardlang.frozen.records import dataclass

Place = tuple[int, int]  # the first character of a statement, and the one after its last
LayerName = tuple[str, str]  # the model that declares a layer, and its name there


@dataclass(frozen=True, slots=True)
class Hint:
    """A text behind the statement that ends at a character. kind: `layouts` or `sent`."""

    at: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownLayouts:
    """The plan of a strategy: hints behind lines, and texts for where one points, by the place of a
    statement or a parameter, by layer (of a model) and by axis."""

    strategy: str
    hints: tuple[Hint, ...]
    texts: Mapping[Place, str]
    layers: Mapping[LayerName, str]
    axes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ShownFigures:
    """The line above a strategy ("" where it has mistakes), and the mistakes of its plan."""

    strategy: str
    lens: str
    mistakes: tuple[ShownMistake, ...]
