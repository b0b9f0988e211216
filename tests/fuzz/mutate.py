"""Programs that are right, or nearly, and what a slip of the hand or an enemy makes of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.fuzz.words import ABSURD, OPERATORS, STRANGE, pieces, word
from tests.mdtest import fences

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"\d[\d_.]*(?:e[+-]?\d+)?\w*")
# No UTF-8: a lone byte, an overlong form, a surrogate, above the last character, cut short. And a NUL.
WRONG = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc3", b"\x00")
NAME = re.compile(r"[A-Za-z_]\w*")


@cache
def programs(further: str = "") -> tuple[str, ...]:
    """All programs that ship with the project, and those of the folder `further`."""
    folders = [ROOT / "examples", ROOT / "stdlib", *([Path(further)] if further else [])]
    found = [path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.shard"))]
    for folder in (ROOT / "specs", ROOT / "tests" / "diagnostics"):
        for page in sorted(folder.glob("*.md")):
            found += [text for _, language, _, text in fences(page.read_text("utf-8")) if language == "shard"]
    return tuple(dict.fromkeys(text for text in found if len(text) < 20_000))


@cache
def sound(further: str = "") -> tuple[str, ...]:
    """Those that are right and train something."""
    found = []
    for text in programs(further):
        program = driver.check_source(Source("main.shard", text), Sink())
        if program is not None and program.training is not None:
            found.append(text)
    return tuple(found)


def mutated(rng: random.Random, text: str) -> str:
    """One to a few changes, mostly few."""
    for _ in range(min(1 + int(rng.expovariate(0.8)), 12)):
        text = rng.choice(CHANGES)(rng, text)[:60_000]
    return text


def _tokens(rng: random.Random, text: str) -> str:
    """A token is lost, doubled, moved, swapped with another or replaced."""
    parts = pieces(text)
    places = [i for i, part in enumerate(parts) if not part.isspace() or part == "\n"]
    if not places:
        return word(rng)
    at, other = rng.choice(places), rng.choice(places)
    match rng.randrange(6):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, parts[at])
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts[at] = word(rng)
        case 4:
            parts.insert(at, f" {word(rng)} ")
        case _:
            del parts[min(at, other) : min(at, other) + rng.randint(1, 8)]
    return "".join(parts)


def _lines(rng: random.Random, text: str) -> str:
    """Lines are lost, doubled, moved, swapped or indented."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    at, other, many = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.choice((1, 1, 1, 2, 3, 8))
    match rng.randrange(5):
        case 0:
            del lines[at : at + many]
        case 1:
            lines[at:at] = lines[at : at + many] * rng.choice((1, 1, 1, 2, 30))
        case 2:
            taken = lines[at : at + many]
            del lines[at : at + many]
            lines[other:other] = taken
        case 3:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = rng.choice((" ", "\t", "  ")) + lines[at].strip() + rng.choice(("\n", "", " \n"))
    return "".join(lines)


def _number(rng: random.Random, text: str) -> str:
    """A number becomes an absurd one."""
    return _replaced(rng, NUMBER, text, lambda old: rng.choice(ABSURD))


def _near_number(rng: random.Random, text: str) -> str:
    """A number becomes another sensible one."""
    numbers = ("1", "2", "3", "4", "5", "6", "7", "8", "12", "16", "30", "31", "100", "0.5")
    return _replaced(rng, NUMBER, text, lambda old: rng.choice(numbers))


def _names(rng: random.Random, text: str) -> str:
    """A name becomes another of the program, once or everywhere."""
    names = NAME.findall(text)
    if len(names) < 2:
        return text
    one, other = rng.choice(names), rng.choice(names)
    if rng.random() < 0.2:
        swap = {one: other, other: one}
        return NAME.sub(lambda m: swap.get(m.group(), m.group()), text)
    return _replaced(rng, NAME, text, lambda old: rng.choice((other, other, one + "_", one[:-1], old.upper())))


def _replaced(rng: random.Random, pattern: re.Pattern[str], text: str, new: Callable[[str], str]) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    return text[: match.start()] + new(match.group()) + text[match.end() :]


def _letters(rng: random.Random, text: str) -> str:
    """Characters are lost, doubled or strange."""
    if not text:
        return text
    at = rng.randrange(len(text))
    match rng.randrange(4):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + text[at] * rng.choice((2, 3, 50)) + text[at + 1 :]
        case 2:
            return text[:at] + rng.choice(STRANGE) + text[at:]
        case _:
            return text[:at]


def _grafted(rng: random.Random, text: str) -> str:
    """Some lines of another program are put in."""
    lines, others = text.splitlines(keepends=True), rng.choice(programs()).splitlines(keepends=True)
    at, start = rng.randint(0, len(lines)), rng.randrange(max(1, len(others)))
    lines[at:at] = others[start : start + rng.choice((1, 1, 2, 5, 40))]
    return "".join(lines)


CHANGES = (
    _tokens, _tokens, _tokens, _tokens, _lines, _lines, _number, _number, _near_number, _names, _names, _names,
    _letters,
    _grafted,
)  # fmt: skip


def absurd(rng: random.Random, text: str) -> str:
    """One number absurd, now and then several."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        text = _number(rng, text)
    return text


def strange(rng: random.Random, text: str) -> bytes:
    """Strange characters here and there, other line ends, or bytes that are no UTF-8."""
    for _ in range(rng.choice((1, 1, 2, 4, 20))):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(STRANGE) * rng.choice((1, 1, 1, 2, 300)) + text[at:]
    match rng.randrange(8):
        case 0:
            text = text.replace("\n", "\r\n")
        case 1:
            text = text.replace("\n", "\r")
        case 2:
            text = "\ufeff" + text
        case _:
            pass
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        at = rng.randint(0, len(content))
        content = content[:at] + rng.choice(WRONG) + content[at:]
    elif rng.random() < 0.05:
        content = text.encode(rng.choice(("utf-16", "utf-32", "latin-1")), "replace")
    return content


def faulty(rng: random.Random, text: str) -> str:
    """One fault, of the sort that people make."""
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    names = NAME.findall(text)
    match rng.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines[at] = NAME.sub(lambda m: rng.choice(names) if rng.random() < 0.3 else m.group(), lines[at])
        case 2:
            lines[at] = re.sub(r"\b(\w+)\(", lambda m: f"{rng.choice(OPERATORS)}(", lines[at], count=1)
        case 3:
            lines[at] = _without_argument(rng, lines[at])
        case 4:
            lines.insert(at, lines[at])
        case 5:
            return absurd(rng, text)
        case 6:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            return mutated(rng, text)
    return "".join(lines)


def _without_argument(rng: random.Random, line: str) -> str:
    """Of things with commas between, one is lost or put first."""
    parts = line.split(", ")
    if len(parts) < 2:
        return line.replace("(", "(x, ", 1)
    taken = parts.pop(rng.randrange(len(parts)))
    return ", ".join(parts if rng.random() < 0.6 else [taken.strip(), *parts])
