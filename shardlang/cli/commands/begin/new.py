"""`shardc new`: a folder of `starts/`, with the data that its program reads, under a name of the
user's."""

from __future__ import annotations

import array
import os
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from shardlang.cli import output
from shardlang.cli.files import require_folder
from shardlang.disk.overwrite_guard import TOKENS_MARK
from shardlang.sources import resources
from shardlang.sources.files import umask


@click.command(
    "new",
    epilog="Examples: shardc new first --from digits; shardc new reader --from text; "
    "shardc new clicks --from clicks; shardc new mine --from module",
)
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--from", "start", required=True, type=click.Choice(["digits", "text", "clicks", "module"]),
    help="A classifier of digits, a language model, a model of click logs, or a torch module.",
)  # fmt: skip
def command(folder: Path, start: str) -> None:
    """Write a folder with a program that runs at once.

    NAME must not exist yet. It gets a program train.shard, its data, and a README of three
    lines."""
    if os.path.lexists(folder):
        raise click.UsageError(f"`{folder}` exists already: give another name")
    require_folder(folder)
    source = resources.folder("starts") / start
    files = {path.name: path.read_bytes() for path in sorted(source.iterdir()) if path.is_file()}
    try:
        _write(folder, {**files, **_DATA.get(start, dict)()})
    except OSError as error:
        raise click.UsageError(f"`{folder}` cannot be written: {(error.strerror or '').lower()}") from error
    output.tell(f"wrote {folder}: {', '.join(sorted(os.listdir(folder)))}")
    output.tell(f"run it: shardc run {folder / 'train.shard'} --ranks 2")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """The folder with all of the files, or nothing."""
    drafted = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        for name, content in files.items():
            (drafted / name).write_bytes(content)
        drafted.chmod(0o777 & ~umask())
        drafted.rename(folder)
    except BaseException:
        shutil.rmtree(drafted, ignore_errors=True)
        raise


def _text() -> Mapping[str, bytes]:
    """The pages of `shardc explain`, and their bytes as tokens of two bytes each."""
    pages = resources.folder("diagnostics/pages", "tests/diagnostics").glob("SH*.md")
    text = "\n".join(page.read_text("utf-8") for page in sorted(pages)).encode()
    tokens = array.array("H", list(text))
    if sys.byteorder == "big":
        tokens.byteswap()
    header = struct.pack("<8sIIQ", TOKENS_MARK, 1, tokens.itemsize, len(tokens))
    return {"text.txt": text, "text.bin": header + tokens.tobytes()}


def _clicks() -> Mapping[str, bytes]:
    """400 lines in the format of Criteo's logs, in which two of the categories decide on the
    clicks."""
    drawn = random.Random(0)
    lines = []
    for _ in range(400):
        numbers = [str(int(drawn.expovariate(0.1))) if drawn.random() < 0.8 else "" for _ in range(13)]
        picked = [drawn.randrange(8) for _ in range(26)]
        clicked = drawn.random() < (0.9 if (picked[0] + picked[1]) % 4 == 0 else 0.1)
        lines.append("\t".join([str(int(clicked)), *numbers, *(f"{at:02x}{n:06x}" for at, n in enumerate(picked))]))
    return {"clicks.txt": "".join(f"{line}\n" for line in lines).encode()}


_DATA: Mapping[str, Callable[[], Mapping[str, bytes]]] = {"text": _text, "clicks": _clicks}
