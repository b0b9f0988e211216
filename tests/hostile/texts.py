"""Texts and names that a program may hold, at random: hostile ones, and plain ones for their twins."""

from __future__ import annotations

import keyword
import random

# What ends a line for one reader of Python or another, ends a literal, hides or reorders what is shown.
SIGNS = [
    *map(chr, range(0x20)), "\x7f", "\x80", "\x85", "\x9b", "\xa0", "\xad", "\u061c", "\u200b", "\u200e", "\u200f",
    "\u2028",
    "\u2029", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\ufeff", "\ufffe", "\U000e0001",
    '"', "'", '"""', "'''", "\\", "\\\\", '\\"', "\\N{DIGIT ONE}", "\\u0022", "\\x22", "{", "}", "{{", "}}", "%s",
    "#",
    "(", ")", "[", "]", ",", ";", ":", "=", "\r\n", " ", "\u00e9", "\u65e5\u672c", "\u05d0", "e\u0301",
    "\U0001f600", "$", "`", "*",
]  # fmt: skip
LINES = [
    "import os", "__import__('os').system('touch PWNED')", "raise SystemExit", "exec(open('x').read())", "pass",
    "return",
    "import math", "math.inf", "torch.save", "F.relu", "mesh.dp", 'mesh["dp"]', "-*- coding: utf-7 -*-",
    "+AGkAbQBwAG8AcgB0ACAAbwBz-", "!/usr/bin/python", "rt.Program(", "def forward(p):", "[red]", ":smile:",
    "\x1b]0;x\x07",
]  # fmt: skip
ENDS = [
    "\n",
    "\r",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "\u2029",
    '"',
    "'",
    '"""',
    "'''",
    "\\\n",
    '"\n',
]
# Those of `train` are no names there, and a metric may not be called as a column of the figures.
NAMES = [
    *(k for k in (*keyword.kwlist, *keyword.softkwlist) if k not in ("if", "else", "return", "and", "or", "not")),
    "_", "__", "___", "_items", "_made", "_sizes", "_keys", "_time", "__class__", "__dict__", "__weakref__",
    "__init__",
    "__getattr__", "__getitem__", "__name__", "__file__", "__builtins__", "__import__", "__doc__", "self", "p",
    "rt",
    "torch", "F", "math", "mesh", "mesh2", "mesh_2", "forward", "program", "parameters", "states", "rows",
    "totals",
    "stages", "schedule", "stage0", "stage1", "evaluate", "finish", "before_microbatch", "before_step", "conclude",
    "print", "list",
    "len", "max", "min", "sum_", "open", "exec", "eval_", "compile_", "getattr", "float", "int", "range", "tuple",
    "slice",
    "value", "path", "main", "name", "kind", "index", "microbatch", "annotations", "x" * 300, "X" * 300, "a", "A",
    "b", "B",
    "os", "sys", "system", "input", "id", "object", "type", "str", "bytes", "grad", "weight", "bias", "dtype",
    "device_",
]  # fmt: skip


class Plain:
    """Texts and names that nobody would think about, each its own."""

    def __init__(self) -> None:
        self._count = 0

    def text(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def name(self) -> str:
        self._count += 1
        return f"n{self._count}"


class Hostile:
    """Texts and names of a seed, no name twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"hostile {seed}")
        self._names = self._random.sample(names := list(dict.fromkeys(NAMES)), len(names))

    def text(self) -> str:
        chosen, parts = self._random, []
        for _ in range(chosen.randint(1, 4)):
            match chosen.randrange(4):
                case 0:
                    parts += [chosen.choice(ENDS), chosen.choice(LINES), chosen.choice(["", "  #", "\n", '"'])]
                case 1:
                    parts += [chosen.choice(LINES)]
                case 2:
                    parts += [chr(chosen.choice([chosen.randrange(0x300), chosen.randrange(0xD800)]))]
                case _:
                    parts += chosen.choices(SIGNS, k=chosen.randint(1, 5))
        return "".join(parts)

    def name(self) -> str:
        return self._names.pop()
