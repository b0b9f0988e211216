"""The kinds of inputs: from (kind, seed, number) to the input, always the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.fuzz import commands, extremes, large, mutate, sentences, strategies
from tests.fuzz.case import Case, ranks
from tests.generated.pairs import pair


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _bytes(rng: random.Random, further: str) -> Case:
    size = rng.choice((0, 1, 2, 8, 64, 64, 512, 4_096))
    few = rng.choice((None, b"(){}[]=\n ", b'"\\\n', b"\x00\xff", b"ab=1\n#", b"*.,:@+-"))
    return Case("bytes", rng.randbytes(size) if few is None else bytes(rng.choice(few) for _ in range(size)))


def _tokens(rng: random.Random, further: str) -> Case:
    return Case("tokens", sentences.tokens(rng, rng.choice((1, 3, 10, 30, 100, 400))).encode("utf-8", "replace"))


def _sentences(rng: random.Random, further: str) -> Case:
    text = sentences.sentence(rng, rng.choice((5, 20, 50, 100, 200, 400)))
    return Case("sentences", text.encode("utf-8", "replace"))


def _mutated(rng: random.Random, further: str) -> Case:
    known = mutate.programs(further) if rng.random() < 0.5 else mutate.sound(further)
    text = mutate.mutated(rng, rng.choice(known))
    return Case("mutated", text.encode("utf-8", "replace"))


def _absurd(rng: random.Random, further: str) -> Case:
    text = pair(rng)[0] if rng.random() < 0.3 else rng.choice(mutate.sound(further))
    return Case("absurd", mutate.absurd(rng, text).encode())


def _strange(rng: random.Random, further: str) -> Case:
    return Case("strange", mutate.strange(rng, rng.choice(mutate.programs(further))))


def _valid(rng: random.Random, further: str) -> Case:
    return Case("valid", pair(rng)[0].encode())


def _faulty(rng: random.Random, further: str) -> Case:
    return Case("faulty", mutate.faulty(rng, pair(rng)[0]).encode("utf-8", "replace"))


def _strategies(rng: random.Random, further: str) -> Case:
    text = pair(rng)[0] if rng.random() < 0.5 else rng.choice(mutate.sound(further))
    made, asked = strategies.restrategised(rng, text)
    return Case("strategies", made.encode(), asked)


def _extreme(rng: random.Random, further: str) -> Case:
    return Case("extreme", extremes.extreme(rng).encode())


def _vast(rng: random.Random, further: str) -> Case:
    return Case("vast", extremes.vast(rng).encode())


def _commands(rng: random.Random, further: str) -> Case:
    return commands.command(rng, pair(rng)[0] if rng.random() < 0.3 else rng.choice(mutate.sound(further)))


def _large(rng: random.Random, further: str) -> Case:
    return large.large(rng)


def _imports(rng: random.Random, further: str) -> Case:
    return commands.imports(rng, rng.choice(mutate.programs(further)))


# Each kind with its share of a thousand inputs.
KINDS: Mapping[str, tuple[int, Callable[[random.Random, str], Case]]] = {
    "bytes": (60, _bytes),
    "tokens": (100, _tokens),
    "sentences": (120, _sentences),
    "mutated": (240, _mutated),
    "absurd": (80, _absurd),
    "strange": (70, _strange),
    "valid": (40, _valid),
    "faulty": (100, _faulty),
    "strategies": (80, _strategies),
    "extreme": (20, _extreme),
    "vast": (10, _vast),
    "commands": (50, _commands),
    "imports": (20, _imports),
    "large": (10, _large),
}


def made(kind: str, seed: int, index: int, further: str = "") -> Case:
    """An input. `further`: a folder of programs besides those of the project."""
    rng = random.Random(f"{kind} {seed} {index}")
    case = KINDS[kind][1](rng, further)
    if case.argv is not None or case.kind == "imports":
        return case
    asked = case.ranks if kind == "strategies" else ranks(rng)
    return replace(case, ranks=asked, overrides=commands.overrides(rng))


def counts(total: int) -> dict[str, int]:
    """How many inputs of each kind make up `total`."""
    whole = sum(share for share, _ in KINDS.values())
    found = {kind: total * share // whole for kind, (share, _) in KINDS.items()}
    found["mutated"] += total - sum(found.values())
    return found
