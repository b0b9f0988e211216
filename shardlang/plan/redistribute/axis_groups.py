"""Axes that several layouts never separate count as one: a mesh cut finely for one rule."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.types.layout import Layout


def axis_groups(layouts: Sequence[Layout], axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The axes in runs that no layout separates: consecutive in a dim, or all P, all R or all I."""
    places = [_places(layout, axes) for layout in layouts]

    def joined(a: str, b: str) -> bool:
        return all(at[b] == (at[a] if at[a][0] < 0 else (at[a][0], at[a][1] + 1)) for at in places)

    runs: list[tuple[str, ...]] = [(a,) for a in axes]
    while pair := next(((g, h) for g in runs for h in runs if g is not h and joined(g[-1], h[0])), None):
        runs[runs.index(pair[0])] = pair[0] + pair[1]
        runs.remove(pair[1])
    return tuple(runs)


def _places(layout: Layout, axes: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Axis -> (dim, its position among the dim's axes); (-1, 0) for P, (-2, 0) R, (-3, 0) I."""
    whole = {"P": (-1, 0), "R": (-2, 0), "I": (-3, 0)}
    found = {a: whole[state] for a in axes if (state := layout.state(a)) != "S"}
    found |= {a: (d, i) for d, cut in enumerate(layout.dims) for i, a in enumerate(cut) if a in axes}
    return found
