"""The operand of a conversion and its result, on each rank -> whether all ranks of the group give
and get alike."""

from __future__ import annotations

from shardlang.matched.lines import Line, Local, Size, Uneven, local_text

# Which dims a conversion joins, by their place in its line; all others are cut.
JOINED = {"all_gather": (0,), "all_gather_replicated": (0,), "all_to_all": (0,)}


def disagreement(line: Line, degree: int) -> str:
    """Why the ranks of a line's group, of so many, do not give and get alike; "" where they do."""
    if line.given is None or line.made is None or line.what == "permute":
        return ""
    right = list[Size]()
    for dim, size in enumerate(line.given.sizes):
        at = line.dims.index(dim) if dim in line.dims else None
        joins = at in JOINED.get(line.what, ())
        parts = line.parts[at] if line.parts and at is not None else None
        if parts is not None:
            if len(parts) != degree:
                return f"dim {dim} has {len(parts)} parts, and the group {degree} ranks"
            apart = Uneven(parts, line.group)
            if apart != (line.given if joins else line.made).sizes[dim]:
                return f"ranks have other parts of dim {dim} than {parts}"
            right.append(sum(parts) if joins else apart)
        elif isinstance(size, Uneven) and size.over.mesh == line.group.mesh and {*size.over.axes} & {*line.group.axes}:
            return f"ranks of the group have parts of dim {dim} of other sizes, {size.sizes}"
        elif at is not None and not joins and isinstance(size, int) and size % degree:
            return f"dim {dim} of {size} does not divide by {degree}"
        else:
            right.append(size if at is None else _scaled(size, degree, joins))
    expected = Local(line.given.dtype, tuple(right))
    return "" if expected == line.made else f"it makes {local_text(expected)}, and {local_text(line.made)} is expected"


def _scaled(size: Size, degree: int, joins: bool) -> Size:
    """The size of a dim after parts of it are joined, or it is cut."""
    if isinstance(size, Uneven):
        return Uneven(tuple([size * degree if joins else size // degree for size in size.sizes]), size.over)
    return size * degree if joins else size // degree
