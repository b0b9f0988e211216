"""Layouts -> local sizes, groups and offsets as Python text, and a record of which of them a
program used.

Sizes that divide are numbers; sizes that do not are names, defined once at the top of the function
that uses them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from shardlang.emit.text.names import RESERVED, TakenNames, identifier, is_plain
from shardlang.frozen.records import dataclass
from shardlang.ops.code import Code, around
from shardlang.ops.python_text import literal
from shardlang.ops.rule import Factor, FactorRule
from shardlang.ops.site import Offset, Size
from shardlang.plan.plan import Plan
from shardlang.types.dim import Dim, TensorType, Term, term_size
from shardlang.types.layout import Layout, chunk_sizes, layout_text, uneven_sizes
from shardlang.types.mesh import Mesh


@dataclass
class Groups:
    """Group expressions; remembers the axes of each for `Program.groups`."""

    meshes: tuple[Mesh, ...]
    used: set[tuple[int, tuple[str, ...]]] = field(default_factory=set)

    def text(self, axes: Sequence[str], mesh: int = 0) -> str:
        """`mesh.dp`, `mesh["dp", "cp"]`; "" without axes."""
        if not axes:
            return ""
        self.used.add((mesh, tuple(axes)))
        name = self.meshes[mesh].name
        if len(axes) == 1 and is_plain(axes[0]):
            return f"{name}.{axes[0]}"
        return f"{name}[{', '.join(map(literal, axes))}]"

    def note(self, axes: Sequence[str], mesh: int = 0) -> None:
        """Record a group that the program uses without naming it (reductions of gradients)."""
        ranked = self.meshes[mesh].ranked(tuple(axes))
        if ranked:
            self.used.add((mesh, ranked))

    def note_all(self, several: Iterable[Sequence[str]]) -> None:
        """Record the group over all axes of `several`, in mesh order: for sums of numbers."""
        axes = {axis for some in several for axis in some}
        self.note([axis.name for axis in self.meshes[0].axes if axis.name in axes])

    def listed(self, mesh: int) -> list[tuple[str, ...]]:
        """Axes tuples over which one mesh sends, fewer axes first, then in the mesh's order."""
        order = {axis.name: at for at, axis in enumerate(self.meshes[mesh].axes)}
        mine = [axes for index, axes in self.used if index == mesh and self.meshes[mesh].ranked(axes) == axes]
        return sorted(mine, key=lambda axes: (len(axes), [order[a] for a in axes]))


@dataclass(frozen=True, slots=True)
class Common:
    """The part of an `OpSite` that operators share which differ only in the names of operands."""

    operand_types: tuple[TensorType, ...]
    result_types: tuple[TensorType, ...]
    operand_shapes: tuple[tuple[Size, ...], ...]
    result_shapes: tuple[tuple[Size, ...], ...]
    part_sizes: Mapping[int, tuple[int, ...]]
    axes: tuple[tuple[str, ...], ...]
    layouts: tuple[Layout, ...]
    groups: tuple[str, ...]
    offsets: tuple[Offset | None, ...]
    batch: int


@dataclass
class LocalSizes:
    """Local sizes of one function; `definitions` are the lines that it must begin with. shapes,
    comments: of a type and a layout by their ids, both are the plan's. common: of a rule, axes, a
    mesh, types and layouts likewise."""

    plan: Plan
    groups: Groups
    taken: TakenNames = field(default_factory=lambda: TakenNames(set(RESERVED)))
    names: dict[tuple[str, tuple[int, ...], int, tuple[str, ...]], Code] = field(default_factory=dict)
    definitions: list[Code] = field(default_factory=list)
    inside: bool = False  # of a layer: dims are called without the path of the layer that has them
    shapes: dict[tuple[int, int], tuple[Size, ...]] = field(default_factory=dict)
    comments: dict[tuple[int, int], str] = field(default_factory=dict)
    common: dict[tuple[int, ...], Common] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken.names.update(mesh.name for mesh in self.plan.meshes)

    def shape(self, type: TensorType, layout: Layout) -> tuple[Size, ...]:
        """The local size of each tensor dim."""
        at = id(type), id(layout)
        if at not in self.shapes:
            dims = zip(type.dims, layout.dims, strict=True)
            self.shapes[at] = tuple([self.local(term, axes, layout.mesh) for term, axes in dims])
        return self.shapes[at]

    def comment(self, type: TensorType, layout: Layout) -> str:
        """`f32[8, 16]  [batch@a, hidden] +b`."""
        at = id(type), id(layout)
        if at not in self.comments:
            shape, mesh = ", ".join(map(str, self.shape(type, layout))), self.plan.meshes[layout.mesh]
            self.comments[at] = f"{type.dtype}[{shape}]  {layout_text(self.type(type), layout, mesh)}"
        return self.comments[at]

    def local(self, term: Term, axes: tuple[str, ...], mesh: int) -> Size:
        """A tensor dim cut over `axes`: a number, or the name of this rank's own size."""
        uneven = self.uneven(term, axes, mesh)
        if uneven is None:
            return (term_size(term) or 1) // self.plan.meshes[mesh].degree(axes)
        return self._defined("local", "_".join(map(self.called, term)) or "one", uneven, axes, mesh)

    def cut(
        self, rule: FactorRule, axes: Sequence[tuple[str, ...]], mesh: int, part_sizes: Mapping[int, tuple[int, ...]]
    ) -> tuple[tuple[str, ...], tuple[Offset | None, ...]]:
        """The group and the offset of each factor; part_sizes: the listed ones, by factor."""
        groups = tuple([self.groups.text(a, mesh) for a in axes])
        rows = enumerate(zip(rule.factors, axes, strict=True))
        return groups, tuple([self.offset(f, a, mesh, part_sizes.get(i)) for i, (f, a) in rows])

    def offset(
        self, factor: Factor, axes: tuple[str, ...], mesh: int, part_sizes: tuple[int, ...] | None = None
    ) -> Offset | None:
        """The global index of a factor's first local element; part_sizes: the listed ones."""
        if not axes:
            return None
        degree = self.plan.meshes[mesh].degree(axes)
        group = self.groups.text(axes, mesh)
        by_hand = part_sizes is not None and len(part_sizes) == degree and len(set(part_sizes)) > 1
        if factor.size % degree == 0 and not by_hand:
            return Offset(f"{group}.index", factor.size // degree)
        sizes = part_sizes if part_sizes is not None and by_hand else chunk_sizes(factor.size, degree)
        starts = (0, *itertools.accumulate(sizes[:-1]))
        return Offset(self._defined("start", self.called(factor), starts, axes, mesh))

    def uneven(self, term: Term, axes: tuple[str, ...], mesh: int) -> tuple[int, ...] | None:
        """The local sizes by coordinate where they differ; None where all are equal."""
        return uneven_sizes(term, self.plan.meshes[mesh].degree(axes), self.plan.sizes)

    def called(self, dim: Dim | Factor) -> str:
        """The name of a dim here."""
        return dim.name.rpartition(".")[2] if self.inside else dim.name

    def type(self, type: TensorType) -> TensorType:
        """A type as it is shown here."""
        if not self.inside or not any("." in dim.name for term in type.dims for dim in term):
            return type
        return replace(type, dims=tuple(tuple(replace(d, name=self.called(d)) for d in term) for term in type.dims))

    def _defined(self, what: str, name: str, values: tuple[int, ...], axes: tuple[str, ...], mesh: int) -> Code:
        key = (what, values, mesh, axes)
        if key not in self.names:
            name = self.taken.claim(f"{identifier(name)}_{what}")
            made = self.names[key] = Code(name, frozenset((name,)))
            self.definitions.append(around("", made, f" = {values}[{self.groups.text(axes, mesh)}.index]"))
        return self.names[key]
