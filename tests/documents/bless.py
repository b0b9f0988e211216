"""`python -m tests.documents.bless`: writes specs/reference.md anew from the declarations. Review the difference."""

from __future__ import annotations

from pathlib import Path

from shardlang.check.model.operators import operator_names
from shardlang.cli.reference import DECLARED, declared_entry, filled, operator_entry
from shardlang.ops.declaration import FAMILIES, REGISTRY

SPECS = Path(__file__).parents[2] / "specs"
REFERENCE = SPECS / "reference.md"
_OPENING = """# Reference

This page lists every operator, optimizer, schedule of the learning rate, data source and initial
value of a parameter: its arguments with their defaults, what it means, and for an operator which
dims may be split. `python -m tests.documents.bless` makes it from the declarations.
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
    for heading, all, declared in DECLARED:
        parts += [f"## {heading}\n\n{filled(all)}", *(declared_entry(name, one) for name, one in declared.items())]
    return "\n".join(parts)


if __name__ == "__main__":
    REFERENCE.write_text(page(), "utf-8")
