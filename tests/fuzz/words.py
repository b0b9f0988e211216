"""What hostile programs are made of: words of the language, names, absurd numbers, strange characters."""

from __future__ import annotations

import random
import re

from shardlang.ops import all_families
from shardlang.ops.declaration import REGISTRY
from shardlang.syntax.tables import tables

assert all_families.__all__  # its import fills the registry
OPERATORS = sorted(REGISTRY)
KEYWORDS = sorted(tables().keywords)
SYMBOLS = sorted(tables().symbols)
NAMES = (
    "x", "y", "h", "w", "a", "b", "n", "d", "batch", "seq", "heads", "head_dim", "classes", "hidden", "label",
    "model",
    "data", "loss", "dp", "mp", "pp", "cp", "Linear", "Net", "blocks", "weight", "bias", "f32", "i64", "bool", "int",
    "float", "str", "dim", "_", "__", "scores", "optimizer", "epochs", "steps", "seed", "random", "sgd", "adamw",
    "normal",
    "ones", "zeros", "uniform", "std", "host", "device", "memory", "eval", "metric", "train", "over", "keep", "eps",
    "p",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "3", "4", "7", "8", "16", "32", "64", "0.5", "1e-5", "25MB", "400Gb/s", "5us", "80GB", "1_000",
)  # fmt: skip
ABSURD = (
    "0", "-1", "-0", "0.0", "-0.5", "1.5", "1e308", "1e309", "1e400", "-1e308", "1e-400", "2 ** 63", "2 ** 64",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "2 ** 99999", "10 ** 400", "2 ** 0.5",
    "(-1) ** 0.5", "0 ** -1", "2 ** -63", "1 / 3", "1 / 0", "10 ** 9", "10 ** 12", "10 ** 18", "1e18", "4294967296",
    "2147483648", "1_0_0_0_0_0_0_0", "0x10", "1e", "1.", ".5", "1..2", "0..0", "5..1", "-1..3", "0..1e9", "00000008",
    "1e300TB", "1e308TB", "0B", "25XB", "1e18PB", "true", "false", "()", "(1,)", "(1, 2)", '""', '"x"', "batch",
    "1 < 2",
    "2 ** 2 ** 2 ** 2 ** 2", "10 ** 9 * 10 ** 9", "3 * 3.0000000001", "9" * 39, "9" * 41, "1" + "0" * 400,
    "1e999999999",
    "-(-(-1))", "not 1", "1 if true else 2", "0.1 + 0.2", "1e16 + 1.0", "4.0", "8.0", "1e2",
)  # fmt: skip
# Byte order and direction marks, zero-width and combining characters, look-alikes of ASCII, wide and unassigned ones.
STRANGE = (
    "\ufeff", "\u202e", "\u202d", "\u2066", "\u2069", "\u200b", "\u200d", "\u2060", "\u0301", "\u0300" * 40, "\u20dd",
    "а", "е", "о", "ѕ", "ｍ", "＝", "（", "）", "｛", "，", "\u037e", "“", "”", "‘", "−", "—", "×", "…", "∗", "\u00a0",
    "\u2003", "\u3000",
    "\u2028", "\u2029", "\u0085", "\x00", "\x01", "\x07", "\x08", "\x0b", "\x0c", "\x1b[31m", "\x1b]0;t\x07", "\x7f",
    "\x9b",
    "\ud7ff", "\ue000", "\uffff", "\ufffe", "\U0010ffff", "\U0001f600", "👩‍👩‍👧", "漢字", "ﷺ", "ß", "ﬁ", "İ", "ı", "K",
    "①", "٣", "\U000e0001",
    "\r", "\r\n", "\n\r", "\t", "\\", "`", "'", '"', "$", "%", "&", "!", "~", ";", "?",
)  # fmt: skip
TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9_.eE]*[A-Za-z/]*|\|>|->|\.\.\.|\.\.|\*\*|[=!<>]=|\n|[ \t]+'
    r"|#[^\n]*|.",
    re.DOTALL,
)


def pieces(text: str) -> list[str]:
    """The text in tokens, spaces and comments, all of it."""
    return TOKEN.findall(text)


def word(rng: random.Random) -> str:
    """A token of any sort."""
    pick = rng.random()
    if pick < 0.3:
        return rng.choice(NAMES)
    if pick < 0.5:
        return rng.choice(SYMBOLS)
    if pick < 0.65:
        return rng.choice(KEYWORDS)
    if pick < 0.75:
        return rng.choice(OPERATORS)
    if pick < 0.85:
        return rng.choice(NUMBERS)
    if pick < 0.92:
        return rng.choice(ABSURD)
    return rng.choice(("\n", "\n", '"gpipe"', '"./b.shard"', "# c", "## doc", *STRANGE[:8]))
