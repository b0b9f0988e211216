"""Random command lines, and folders of files that are not what they should be."""

from __future__ import annotations

import random

from shardlang.cli.main import COMMANDS
from tests.fuzz.case import Case, Link, ranks
from tests.fuzz.mutate import mutated
from tests.fuzz.words import ABSURD, NAMES, STRANGE

PATHS = (
    "main.shard", "main.shard", "main.shard", "main", "", ".", "..", "/", "-", "--", "/dev/null",
    "/dev/zero", "/dev/stdin",
    "/proc/self/mem", "self.shard", "folder", "pipe", "zero.shard", "dangling.shard", "x" * 5_000, "a/" * 3_000,
    "main.shard/x",
    "\udcff.shard", "\u202e.shard", "~", "$HOME", "*.shard", "main.shard\n", "b.shard", "latin.shard", "-x", "=",
    "é.shard",
)  # fmt: skip
SETTINGS = (
    "batch", "d", "model.d", "train.epochs", "train.steps", "train.seed", "train.clip", "train.precision", "s.mp",
    "s.dp", "ddp.dp", "nope",
    "model.", ".", "a.b.c.d", "batch[0]", "", "dim.batch", "train", "model", "s", "x" * 3_000, "é", "model.layers",
    "seed", "epochs",
)  # fmt: skip
VALUES = (
    *ABSURD, "auto", "true", "f32", "bf16", "(", ")", "((((", "x", "batch", "a b", "=", "1=2", "#", "\n", "2\n3", "\\",
    '"',
    "|>", "[d]", "1..2", *STRANGE[:12], "(" * 500, "1+" * 500 + "1", "-" * 400 + "1",
)  # fmt: skip
OPTIONS = (
    "--ranks", "--strategy", "--set", "--output", "--rank", "--json", "-o", "--device", "--metrics", "--save-weights",
    "--log-dir", "--check", "--diff", "--steps", "--help", "--resume", "--version", "--nope",
    "--simulate", "--all-strategies", "--dtype", "--real", "--simulated-only", "--random-data",
)  # fmt: skip
FILES = {
    "self.shard": Link("self.shard"), "folder": Link("folder/"), "pipe": Link(""), "zero.shard": Link("/dev/zero"),
    "dangling.shard": Link("nowhere.shard"), "latin.shard": b"dim a = 1 # \xe9\n", "b.shard": b"dim b = 2\n",
}  # fmt: skip


def command(rng: random.Random, text: str) -> Case:
    """A command with hostile words, in a folder with hostile files."""
    if rng.random() < 0.3:
        text = mutated(rng, text)
    name = rng.choice((*COMMANDS, *COMMANDS, "chek", "", "lsp", "--version"))
    words = [name]
    if name == "explain":
        hostile = ("", "x" * 2000, "\u202e", "-1", "SH10٣", "sg")
        words += [rng.choice(("SH304", "sh101", "304", "SH999", "SH900", "matmul", *hostile))]
        return _case(rng, text, words)
    words += [
        rng.choice(PATHS) if rng.random() < 0.4 else "main.shard" for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2, 3)))
    ]
    if rng.random() < 0.8 and name not in ("fmt", "explain"):
        words += ["--ranks", _value(rng, "--ranks") if rng.random() < 0.3 else str(ranks(rng) or 1)]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        option = rng.choice(OPTIONS)
        words += [option, _value(rng, option)] if rng.random() < 0.9 else [option]
    if name == "compile" and rng.random() < 0.8:
        words += [
            "-o",
            rng.choice(
                ("out", "out/a/b", "main.shard", "/dev/null", "/proc/x", "folder", "pipe", "self.shard", "", "\x01")
            ),
        ]
    return _case(rng, text, words)


def _case(rng: random.Random, text: str, words: list[str]) -> Case:
    content = text.encode("utf-8", "replace")
    return Case("command", content, argv=tuple(words), files=FILES, stdin=rng.choice((content, b"", b"\xff")))


def _value(rng: random.Random, option: str) -> str:
    match option:
        case "--set":
            return f"{rng.choice(SETTINGS)}{rng.choice(('=', '=', '=', ' = ', ''))}{rng.choice(VALUES)}"
        case "--ranks" | "--rank" | "--steps":
            return rng.choice(
                (
                    "0",
                    "-1",
                    "1",
                    "8",
                    "two",
                    "1e3",
                    "10" * 30,
                    "",
                    " 8",
                    "٣",
                    "8.0",
                    "0x8",
                    "9" * 5_000,
                    "None",
                    "1_000",
                )
            )
        case "--output":
            return rng.choice(("full", "concise", "json", "sarif", "xml", ""))
        case "--strategy":
            return rng.choice((*NAMES[:8], "ddp", "s", "", "x" * 3_000, *STRANGE[:6]))
        case "--metrics" | "--save-weights" | "--log-dir" | "-o":
            return rng.choice((*PATHS, "out", "out/m.jsonl"))
        case _:
            return rng.choice(VALUES)


def overrides(rng: random.Random) -> dict[str, str]:
    """What `--set` may give, mostly nothing."""
    if rng.random() < 0.85:
        return {}
    return {rng.choice(SETTINGS) or "x": rng.choice(VALUES) for _ in range(rng.choice((1, 1, 2, 5)))}


# --- files that import one another -------------------------------------------

STEMS = ("a", "b", "c", "main")
SPECIAL = (
    Link("self.shard"), Link("/dev/zero"), Link("/dev/null"), Link("/dev/full"), Link("folder/"), Link(""),
    Link("nowhere.shard"), Link("."),
    Link("main.shard"), Link("a.shard"), Link("/proc/self/environ"), Link("/etc"), b"\xff\xfe", b"", b"\x00" * 100,
    b"(" * 10_000, b"dim n = " * 500,
    b"#" + b"x" * 4_500_000,
)  # fmt: skip


def imports(rng: random.Random, text: str) -> Case:
    """A folder of files that import one another, in cycles too, by many names, some of them no files at all."""
    files: dict[str, bytes | Link] = {f"{stem}.shard": _library(rng, stem).encode() for stem in STEMS}
    for stem in STEMS[: rng.choice((0, 1, 1, 2))]:
        files[f"{stem}.shard"] = rng.choice(SPECIAL)
    if rng.random() < 0.5:
        uses = "".join(_use(rng) for _ in range(rng.choice((1, 1, 2, 5))))
        files["main.shard"] = (uses + text).encode("utf-8", "replace")
    argv = None
    if rng.random() < 0.3:
        argv = (
            "check",
            *(rng.choice((*PATHS[:4], "a.shard", "b.shard", "./main.shard")) for _ in range(rng.choice((1, 2)))),
        )
    return Case("imports", b"", ranks(rng), files=files, argv=argv)


def _use(rng: random.Random) -> str:
    place = rng.choice((
        *(f'"./{stem}.shard"' for stem in STEMS), *(f'"{stem}.shard"' for stem in STEMS), '"folder/../a.shard"',
        '"./././b.shard"', "std.nn",
        "std.transformer", "std", "std.nn.Linear", "nn", '"/dev/zero"', '"/dev/stdin"', '""', '"."', '"std.nn"',
        '"a"', '"\\n"', "std.clusters",
        f'"{"x" * 300}"', f'"{"../" * 50}etc/passwd"', '"a.shard/b.shard"', '"~/a.shard"', '"\u202e.shard"',
    ))  # fmt: skip
    names = ", ".join(
        rng.choice(("A", "B", "C", "Linear", "f", "n", "s", "h100")) for _ in range(rng.choice((1, 1, 2, 4)))
    )
    return f"use {place}: {names}\n"


def _library(rng: random.Random, stem: str) -> str:
    uses = "".join(_use(rng) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    name = stem.upper()[0]
    inner = rng.choice(("", f"  layer b = {rng.choice('ABCM')}()\n", "  param w: [n] = ones()\n"))
    result, called = rng.choice(("x", "b(x)", "x * w", "f(x)")), rng.choice(("x", "f(x)", "relu(x)"))
    return (
        f"{uses}dim n = {rng.choice(('4', 'n', 'm', '2 ** 70'))}\nmodel {name} {{\n{inner}"
        f"  forward(x: [k, n]) -> [k, n] {{\n    return {result}\n  }}\n}}\nfn f(x: [k]) {{\n  return {called}\n}}\n"
    )
