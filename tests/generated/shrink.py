"""A failing pair made smaller: lines, statements, terms and arguments taken out as long as it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.generated.cases import CRASHED, INVALID, Outcome, judged

_STATEMENT = re.compile(r"^\s*(v\d+) = (.*)$")


def shrunk(outcome: Outcome, tries: int = 600) -> Outcome:
    """The smallest pair found that fails like `outcome`, in at most so many tries."""
    best = judged(outcome.text, outcome.ranks)
    if not best.failed:
        return outcome
    made = True
    while made and tries > 0:
        made = False
        for text in _smaller(best.text):
            tries -= 1
            found = judged(text, outcome.ranks)
            if _alike(found, best):
                best, made = found, True
                break
            if tries <= 0:
                break
    return best


def _alike(found: Outcome, former: Outcome) -> bool:
    """The same kind of failure; the same exception where one is raised."""
    if found.kind != former.kind:
        return False
    if found.kind == INVALID:
        return found.detail[:5] == former.detail[:5]
    return found.kind != CRASHED or _raised(found) == _raised(former)


def _raised(outcome: Outcome) -> str:
    """What was raised, and where, without its figures."""
    lines = outcome.detail.strip().splitlines()
    where = [line.strip() for line in lines if line.lstrip().startswith("File")]
    return re.sub(r"[\d`'].*", "", lines[-1])[:60] + (where[-1] if where else "")


def _smaller(text: str) -> Iterator[str]:
    """Texts with one thing less, whole blocks first."""
    lines = text.split("\n")
    for start, end in _blocks(lines):
        yield "\n".join([*lines[:start], *lines[end:]])
    for at, line in enumerate(lines):
        if not line.strip() or line.strip() in ("}", "} else {"):
            continue
        rest = [*lines[:at], *lines[at + 1 :]]
        yield "\n".join(rest)
        statement = _STATEMENT.match(line)
        if statement:
            for name in dict.fromkeys(re.findall(r"\b(?:v\d+|x|ids)\b", statement[2])):
                yield re.sub(rf"\b{statement[1]}\b", name, "\n".join(rest))
        for shorter in _shorter(line):
            yield "\n".join([*lines[:at], shorter, *lines[at + 1 :]])


def _blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and one past the last line of each item in column 0."""
    for at, line in enumerate(lines):
        if re.match(r"(model|fn) ", line):
            end = next((n for n in range(at, len(lines)) if lines[n] == "}"), at)
            yield at, end + 1


def _shorter(line: str) -> Iterator[str]:
    """A line with a term, an argument, a dim's axes or a wrapping call left out."""
    for found in re.finditer(r" [+-] (?:[\d.e-]+ \* )?\w+(?:\((?:[^()]|\([^()]*\))*\))?(?: \* [\d.e-]+)?", line):
        yield line[: found.start()] + line[found.end() :]
    for found in re.finditer(r", \w+(?: = [^,()]+)?(?=[,)])", line):
        yield line[: found.start()] + line[found.end() :]
    for found in re.finditer(r"@\([\w, ]+\)|@\w+| [+^]\w+$", line):
        yield line[: found.start()] + line[found.end() :]
    for found in re.finditer(r"\b(?:tanh|square|mean|relu|abs|sigmoid)\((\w+)\)", line):
        yield line[: found.start()] + found[1] + line[found.end() :]
    for found in re.finditer(r", \w+: (?:i64)?\[[^\]]*\](?: < \w+)?", line):
        yield line[: found.start()] + line[found.end() :]
