"""Headers of safetensors files: where those that shardlang writes are made. weight_files.py reads
them, of whoever wrote them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from shardlang.checkpoints.index import Saved

# What a header begins with that tells of nothing but torch's layout of numbers.
PLAIN_MARK = '{"__metadata__":{"format":"pt"}'


def require_plain(path: Path) -> None:
    """OSError where a path leads to what is no plain file: a pipe would be waited for."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is no plain file")


def written(tensors: Mapping[str, Saved], mark: str = PLAIN_MARK) -> bytes:
    """The header of a file of whole tensors, one behind the other: its length, then JSON, padded to
    a multiple of 8. mark: what the JSON begins with, without its end."""
    entries, start = {}, 0
    for name, saved in tensors.items():
        end = start + saved.nbytes
        entries[name] = {"dtype": saved.dtype, "shape": saved.shape, "data_offsets": (start, end)}
        start = end
    text = ",".join([mark, *[json.dumps(entries, separators=(",", ":"))[1:-1]] * bool(entries)]).encode() + b"}"
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
