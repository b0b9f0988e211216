"""From an unknown name and the names that exist to the one that was probably meant, or None.

Decides which name is nearest, and words the offer of it."""

from __future__ import annotations

from collections.abc import Iterable


def distance(left: str, right: str, limit: int) -> int:
    """Edits from `left` to `right`: insert, delete, replace, swap neighbours, each 1; above
    `limit`: `limit + 1`.

    The restricted Damerau-Levenshtein distance (optimal string alignment), a row at a time."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                best = min(best, older[j - 2] + 1)
            row.append(best)
        if min(row) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def offer(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Text to type for an unknown name: the nearest one, or `otherwise` if none is near enough."""
    near = nearest(name, candidates)
    return f"did you mean `{near}`?" if near else otherwise


def _within(letters: set[str], other: str, limit: int) -> bool:
    """Whether `limit` edits could be enough: each brings or takes one letter at most."""
    others = set(other)
    return len(letters - others) <= limit and len(others - letters) <= limit


def _tokens(name: str) -> list[str]:
    return sorted(name.replace(".", "_").lower().split("_"))


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is probably a misspelling of, or None where none is near enough.

    A third of the letters may differ (at least one, at most four), so `x` is never offered for
    `loss`. Next come names of the same words in another order or spelling (`dim_head`, `headDim`:
    `head_dim`), then the one candidate that `name` is the start or the last part of. Ties go to the
    nearer length, then to what is nearest with capitals, then to the first in alphabetical order,
    so the answer does not depend on the order of `candidates`."""
    known = {c for c in candidates if c and c != name}
    limit = min(4, max(1, len(name) // 3))
    folded = name.lower()
    letters = set(folded)
    few = {c: c.lower() for c in known if abs(len(c) - len(name)) <= limit}
    likely = {c: low for c, low in few.items() if _within(letters, low, limit)}
    scored = [(distance(folded, low, limit), abs(len(c) - len(name)), c) for c, low in likely.items()]
    near = [entry for entry in scored if entry[0] <= limit and (min(len(name), len(entry[2])) > 1 or entry[0] == 0)]
    if near:
        return min(near, key=lambda entry: (*entry[:2], distance(name, entry[2], len(name)), entry[2]))[2]
    joined = folded.replace("_", "")
    same = [c for c in known if letters ^ set(c.lower()) <= {"_", "."}]
    reordered = [c for c in same if _tokens(c) == _tokens(name) or c.replace("_", "").lower() == joined]
    if reordered:
        return min(reordered)
    parts = [c for c in known if len(name) >= 3 and (c.startswith(name) or c.endswith("." + name))]
    return parts[0] if len(parts) == 1 else None
