"""The operand of a conversion -> its result, on each rank: what the row of the table makes of local
sizes; and whether all ranks of the group give and get alike."""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Line, Local, Size, Uneven, local_text

GATHERS = ("all_gather", "all_gather_replicated")
CUTS = ("reduce_scatter", "split")


@dataclass(frozen=True, slots=True)
class Joined:
    """The sizes of a dim before and after: members have `parts` where they are apart, and `whole`
    where they are together."""

    dim: int
    gathers: bool
    parts: tuple[int, ...] | None


def along(line: Line) -> list[Joined]:
    """The dims that a conversion joins or cuts."""
    if line.what == "all_to_all":
        return [Joined(dim, not at, _part(line, at)) for at, dim in enumerate(line.dims)]
    return [Joined(dim, line.what in GATHERS, _part(line, 0)) for dim in line.dims if line.what in GATHERS + CUTS]


def _part(line: Line, at: int) -> tuple[int, ...] | None:
    return line.parts[at] if line.parts else None


def made_by(line: Line, degree: int) -> Local | None:
    """The type of a line's result, from that of its operand on a group of so many ranks; None where
    the operand's is not known, or lacks a dim."""
    if line.given is None or any(joined.dim >= len(line.given.sizes) for joined in along(line)):
        return None
    sizes = list(line.given.sizes)
    for joined in along(line):
        size = sizes[joined.dim]
        sizes[joined.dim] = _whole(size, degree, joined) if joined.gathers else _cut(size, degree, joined, line.group)
    return Local(line.given.dtype, tuple(sizes))


def _whole(size: Size, degree: int, joined: Joined) -> Size:
    if joined.parts is not None:
        return sum(joined.parts)
    return size * degree if isinstance(size, int) else Uneven(tuple(s * degree for s in size.sizes), size.over)


def _cut(size: Size, degree: int, joined: Joined, group: AxisGroup) -> Size:
    if joined.parts is not None:
        return Uneven(joined.parts, group)
    return size // degree if isinstance(size, int) else Uneven(tuple(s // degree for s in size.sizes), size.over)


def disagreement(line: Line, degree: int) -> str:
    """Why the ranks of a line's group do not give and get alike; "" where they do."""
    if line.given is None or line.made is None or line.what == "permute":
        return ""
    return next(_reasons(line, degree), "")


def _reasons(line: Line, degree: int) -> Iterator[str]:
    assert line.given is not None and line.made is not None
    joined = {each.dim: each for each in along(line)}
    for dim, size in enumerate(line.given.sizes):
        each = joined.get(dim)
        if each is not None and each.parts is not None:
            if len(each.parts) != degree:
                yield f"dim {dim} has {len(each.parts)} parts, and the group {degree} ranks"
            apart = line.given.sizes[dim] if each.gathers else line.made.sizes[dim]
            if isinstance(apart, int) or apart.sizes != each.parts or apart.over != line.group:
                yield f"ranks have other parts of dim {dim} than {each.parts}"
        elif isinstance(size, Uneven) and size.over.mesh == line.group.mesh and {*size.over.axes} & {*line.group.axes}:
            yield f"ranks of the group have parts of dim {dim} of other sizes, {size.sizes}"
        elif each is not None and not each.gathers and isinstance(size, int) and size % degree:
            yield f"dim {dim} of {size} does not divide by {degree}"
    if (right := made_by(line, degree)) != line.made and right is not None:
        yield f"it makes {local_text(right)}, and {local_text(line.made)} is expected"
