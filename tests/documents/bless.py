"""`python -m tests.documents.bless`: writes specs/reference.md, the table of torch's words in specs/pytorch.md and
that of `--set` in specs/command.md anew from the declarations. Review the difference."""

from __future__ import annotations

import re
from pathlib import Path

from shardlang.check.model.operators import operator_names
from shardlang.cli.reference import declared_entry, filled, operator_entry, sections, settable
from shardlang.ops.declaration import FAMILIES, REGISTRY
from shardlang.ops.torch_words import TRAINING, WRITTEN

SPECS = Path(__file__).parents[2] / "specs"
REFERENCE, PYTORCH, COMMAND = (SPECS / f"{name}.md" for name in ("reference", "pytorch", "command"))
_OPENING = """# Reference

This page lists every operator, optimizer, schedule of the learning rate, data source and initial
value of a parameter: its arguments with their defaults, what it means, and for an operator which
dims may be split. Then come the words of the language, the settings of `train` and of hardware, and
what the library has. `python -m tests.documents.bless` makes it from the declarations.
`shardc explain NAME` prints a part of it, and without a name a line for each:

```
$ shardc explain | grep softmax
softmax  exp(x) divided by its sum over one dim.
log_softmax  The logarithm of softmax over one dim.
```

## How to read it

An argument without a default is required. If no default shows its kind, the kind follows its name:
`dim` is a dim by its name (or a number, for a new one), `dims` one dim or several, `(h, w)`, `pair`
a number or two, `dtype` an element type. `none` means that it is left out. Arguments without a kind
are values of the model, or numbers.

An example is a function that `shardc check` accepts, so its shapes are right. `...` stands for any
dims. `operators.md` and `layouts.md` say what split, statistics and pending mean.
"""


def page() -> str:
    """All operators by family, in the order of their declarations, then all other declarations."""
    parts = [_OPENING]
    family = ""
    for name in operator_names():
        module = FAMILIES[name]
        parts += [f"## {module.capitalize()}\n"] * (module != family) + [operator_entry(REGISTRY[name])]
        family = module
    for heading, all, declared in sections():
        parts += [
            f"## {heading}\n" + (all and f"\n{filled(all)}"),
            *(declared_entry(name, one) for name, one in declared.items()),
        ]
    return "\n".join(parts)


def torch_words(page: str) -> str:
    """The page "the same in PyTorch" with the tables of torch's words and of training's as they
    are."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in w.names)} | `{w.torch}` | {w.here and f'`{w.here}`'} | {w.note} |"
        for w in WRITTEN
    ]
    page = _with_table(page, "| torch's words | in torch | here | more |", rows)
    rows = [
        f"| {', '.join(f'`{name}`' for name in w.names)} | {w.here and f'`{w.here}`'} | {w.where} | {w.note} |"
        for w in TRAINING
    ]
    return _with_table(page, "| words of training | here | in | more |", rows)


def settings(page: str) -> str:
    """The page of the command with the table of what `--set` takes."""
    rows = [f"| `{typed}` | {said} |" for typed, said in settable()]
    return _with_table(page, "| `--set` | sets |", rows)


def _with_table(page: str, head: str, rows: list[str]) -> str:
    table = "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows, ""])
    return re.sub(rf"{re.escape(head)}\n(?:\|[^\n]*\n)*", lambda _: table, page)


if __name__ == "__main__":
    REFERENCE.write_text(page(), "utf-8")
    PYTORCH.write_text(torch_words(PYTORCH.read_text("utf-8")), "utf-8")
    COMMAND.write_text(settings(COMMAND.read_text("utf-8")), "utf-8")
