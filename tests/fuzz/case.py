"""What one input of the fuzzer is: a program with its options, or a command line, and the files beside it."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Link:
    """A file that is a symbolic link to `target`; with an empty target it is a pipe, with a trailing `/` a folder."""

    target: str


@dataclass(frozen=True)
class Case:
    """`text` is the program `main.shard`. With `argv` the command line is tried, else the stages one by one."""

    kind: str
    text: bytes
    ranks: int | None = None
    strategy: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | Link] = field(default_factory=dict)
    argv: tuple[str, ...] | None = None
    stdin: bytes = b""

    def write(self, folder: Path) -> None:
        """Makes the files in an empty folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content.target == "":
                os.mkfifo(path)
            elif content.target.endswith("/"):
                path.mkdir()
            else:
                path.symlink_to(content.target)
        if self.files or self.argv is not None:
            main = folder / "main.shard"
            if not main.exists() and not main.is_symlink():
                main.write_bytes(self.text)


RANKS = (None, 1, 2, 3, 4, 6, 7, 8, 8, 8, 16, 64, 4096, 10**6, 10**12, 2**63, 10**30)
LIKELY = (None, 1, 2, 8, 8, 8, 4, 16)


def ranks(rng: random.Random) -> int | None:
    """A number of ranks, one time in five an absurd one."""
    return rng.choice(RANKS) if rng.random() < 0.2 else rng.choice(LIKELY)
