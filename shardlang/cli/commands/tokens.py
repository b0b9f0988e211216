"""`shardc tokens`: text to a file of token numbers that the data source `tokens` reads."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shardlang.cli import options, output


@click.command(
    "tokens",
    epilog='Example: shardc tokens plays.txt -o data/plays.bin; then `data = tokens("data/plays.bin", batch = batch, '
    "seq = seq)` in a model with vocab = 256.",
)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...", type=options.There())
@click.option("-o", "to", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The file to write.")
@click.option(
    "--tokenizer", default="bytes", show_default=True, metavar="bytes|FILE",
    help="A token a byte of UTF-8, or a tokenizer.json of the library tokenizers.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, texts: tuple[Path, ...], to: Path, tokenizer: str) -> None:
    """Write the tokens of texts, one after another, to a file.

    A token takes 2 bytes if the vocabulary allows, else 4."""
    from shardlang.errors import RunError
    from shardlang.runtime.data import token_files

    try:
        chosen = token_files.ByteTokenizer() if tokenizer == "bytes" else token_files.FromFile(Path(tokenizer))
        count = token_files.write(texts, to, chosen)
    except RunError as error:
        print(error, file=sys.stderr)
        ctx.exit(2 if error.code in ("SH512", "SH513") else 1)
    files = "file" if len(texts) == 1 else "files"
    output.tell(f"wrote {to}: {count:,} tokens of {len(texts)} {files}, vocabulary {chosen.vocab:,}")
