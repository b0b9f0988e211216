"""A checkpoint is damaged, and a run goes on: it ends with the weights and losses of one that nothing happened to, or,
where no checkpoint is whole, it is refused before its first step. The run after it has nothing left to do.

The ranks are real ones, as in tests/kills. The newest checkpoint is damaged in each trial; in some those before it as
well, so that the run goes on from an older one, or from none.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.kills.kills import PROGRAM, STEPS, done, numbers, undisturbed

FILES = ("index.json", "rank-00000.safetensors", "rank-00001.safetensors")
KEPT = (STEPS - 4, STEPS - 2, STEPS)
# Bits that a flip changes at most.
_FLIPS = 3


@dataclass(frozen=True)
class Outcome:
    """Of one trial. end: `right` or `refused`. wrong: what is not as it should be; "": nothing."""

    what: str
    end: str
    wrong: str = ""


def _gone(file: Path, draw: random.Random) -> None:
    file.unlink()


def _empty(file: Path, draw: random.Random) -> None:
    file.write_bytes(b"")


def _cut(file: Path, draw: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(1, len(content))])


def _flipped(file: Path, draw: random.Random) -> None:
    """Half of the places are in the first bytes, where the header is."""
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, _FLIPS)):
        content[draw.randrange(draw.choice([min(1000, len(content)), len(content)]))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _zeros(file: Path, draw: random.Random) -> None:
    """Blocks that a file system had not written as the machine failed."""
    content = file.read_bytes()
    first = draw.randrange(len(content))
    file.write_bytes(content[:first] + bytes(len(content) - first))


def _longer(file: Path, draw: random.Random) -> None:
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.randint(1, 5000)))


def _of_another_step(file: Path, draw: random.Random) -> None:
    shutil.copy(file.parent.with_name(f"step-{KEPT[0]}") / file.name, file)


def _of_another_rank(file: Path, draw: random.Random) -> None:
    shutil.copy(file.with_name(draw.choice([name for name in FILES if name != file.name])), file)


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "gone": _gone, "empty": _empty, "cut": _cut, "flipped": _flipped, "zeros": _zeros, "longer": _longer,
    "of another step": _of_another_step, "of another file": _of_another_rank,
}  # fmt: skip


def damage(kept: Path, number: int, draw: random.Random) -> tuple[str, bool]:
    """Damages checkpoints, the newest in each way in turn: what was done, and whether one is whole."""
    every = [*product(FILES, WAYS)]
    name, way = every[number % len(every)]
    step = kept / f"step-{KEPT[-1]}"
    if number % 9 == 8:
        shutil.rmtree(step)
        shutil.copytree(step.with_name(f"step-{KEPT[0]}"), step)
        told = "all of another step"
    else:
        WAYS[way](step / name, draw)
        told = f"{name} {way}"
    # Those before it: none, one, or all.
    before = KEPT[:-1][::-1][: draw.choice([0, 0, 0, 1, 1, 2])]
    for older in before:
        name, way = draw.choice(FILES), draw.choice(["gone", "empty", "cut", "flipped"])
        WAYS[way](kept / f"step-{older}" / name, draw)
        told += f"; step-{older}: {name} {way}"
    return told, len(before) < len(KEPT) - 1


def trial(number: int, draw: random.Random, begun: Path, folder: Path, expected: object) -> Outcome:
    shutil.copytree(begun, folder)
    what, whole = damage(folder / "kept", number, draw)
    before = (folder / "m.jsonl").read_bytes()
    (folder / "w.safetensors").unlink()
    code, said = done(folder, "--resume")
    if code != 0:
        refused = "error[SH508]: no checkpoint is whole" in said and (folder / "m.jsonl").read_bytes() == before
        return Outcome(what, "refused", "" if refused and not whole else f"exit code {code}: {said}")
    if numbers(folder) != expected:
        return Outcome(what, "right", "other numbers")
    code, said = done(folder, "--resume")
    aside = [path.name for path in (folder / "kept").iterdir() if ".damaged" in path.name]
    if code or numbers(folder) != expected or not aside:
        return Outcome(what, "right", f"the run after it: exit code {code}, {aside} aside: {said}")
    return Outcome(what, "right")


def trials(
    number: int, folder: Path, seed: int = 0, tell: Callable[[str], None] = print, first: int = 0
) -> list[Outcome]:
    """Outcomes of so many trials, the ways of which begin with the first. A trial that is not as it should be keeps its
    folder."""
    begun = folder / "undisturbed"
    expected = undisturbed(begun, PROGRAM.replace("keep = 2", "keep = 3"))
    found: list[Outcome] = []
    for at in range(first, first + number):
        place = folder / f"trial-{at}"
        outcome = trial(at, random.Random(f"{seed} {at}"), begun, place, expected)
        found.append(outcome)
        if outcome.wrong:
            tell(f"{place}: {outcome}")
        else:
            shutil.rmtree(place)
    return found


def table(found: list[Outcome]) -> str:
    ends = Counter(each.end for each in found if not each.wrong)
    wrong = sum(bool(each.wrong) for each in found)
    return f"{len(found)} damaged: {ends['right']} ended right, {ends['refused']} were refused, {wrong} wrong"
