"""What lines may hold (lines.py) -> editors/vim/syntax/shard.vim: after each piece of a line, Vim looks for those that
may follow it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardlang.facts.dtypes import DTYPES
from shardlang.syntax.tables import RESERVED
from tests.syntax.lines import Line, Lines, Piece
from tests.syntax.textmate import AXIS, CHOICE, DIM, FUNCTION, MODEL, SELECTOR, SETTING, scope_of

# Vim's own groups for the scopes of names, by how a scope begins.
_GROUPS = {
    AXIS: "PreProc", DIM: "Constant", CHOICE: "Special", FUNCTION: "Function", MODEL: "Type", SETTING: "Identifier",
    SELECTOR: "Underlined", "entity.name": "Type", "variable": "Identifier",
}  # fmt: skip
# What lines have in common, and what is in no line that a word begins.
_HEAD = Path(__file__).with_name("head.vim")


def write(grammar: str) -> str:
    """The text of the file."""
    lines, reserved = Lines(grammar), [word.lower() for word in RESERVED]
    out = [
        _HEAD.read_text("utf-8").replace("DTYPES", r"\|".join(DTYPES)).rstrip(),
        f"syn keyword shardReserved {' '.join(reserved[:-2])}",
        f"syn keyword shardTruth {' '.join(reserved[-2:])}", f"syn keyword shardDtype {' '.join(DTYPES)}",
    ]  # fmt: skip
    for line in lines.begun_in(*lines.blocks()):
        out += _line(line) if line.word != "at" else []
    # After the words of lines, since `optimizer` is one.
    out.append(r"syn match shardSetting /^\s*\zs\h\w*\ze\s\+at\s\+[A-Za-z_*]/ nextgroup=shardAt skipwhite")
    return "\n".join([*out, 'let b:current_syntax = "shard"', ""])


def _line(line: Line) -> Iterator[str]:
    """The line's word, and a group for each piece that may stand in it."""
    start = r"\%(^\s*\|{\s*\|^\s*at\s[^:]*:\s*\)\@<="
    yield f"syn match shardKeyword /{start}{line.word}\\>\\%(\\s*\\%(==\\@!\\|,\\)\\)\\@!/{_next(line, line.word)}"
    for piece in sorted({piece for pieces in line.after.values() for piece in pieces}, key=_turn):
        yield from _piece(line, piece)


def _turn(piece: Piece) -> tuple[bool, Piece]:
    """Of two that fit, Vim takes the one that is told of last: a word of a rule before a name."""
    return piece.kind == "word", piece


def _piece(line: Line, piece: Piece) -> Iterator[str]:
    group, after = _group(line, piece), _next(line, piece.label)
    if piece.kind == "word":
        yield f"syn match {group} /\\<{piece.text}\\>/ contained{after}"
        yield f"hi def link {group} shardKeyword"
    elif piece.kind == "sign":
        yield f"syn match {group} /\\V{piece.text}/ contained{after}"
    elif piece.kind == "value":
        yield f"syn match {group} /\\d[0-9A-Za-z_.]*/ contained{after}"
        yield f"hi def link {group} Number"
        yield f'syn region {group} start=/"/ skip=/\\\\./ end=/"\\|$/ contained{after}'
    else:
        scope = scope_of(line, piece.text)
        link = next(of_vim for start, of_vim in _GROUPS.items() if scope.startswith(start))
        if piece.kind == "names":
            yield f"syn region {group} start=/(/ end=/)/ contained contains={group}_,{group},shardNumber{after}"
            group, after = f"{group}_", ""
        yield f"syn match {group} /\\<\\h\\w*\\>/ contained{after}"
        yield f"hi def link {group} {link}"


def _group(line: Line, piece: Piece) -> str:
    names = {",": "comma", ".": "dot", ":": "colon", "=": "is", "->": "gives", "?": "yields"}
    return f"shard_{line.word}_{piece.kind}_{names.get(piece.text, piece.text)}".rstrip("_")


def _next(line: Line, label: str) -> str:
    groups = sorted(_group(line, piece) for piece in line.after.get(label, ()))
    groups += ["shardStages"] if line.block == "stage_entries" else []
    return f" nextgroup={','.join(groups)} skipwhite" if groups else ""
