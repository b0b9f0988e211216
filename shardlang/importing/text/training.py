"""A model and its example tensors -> a `train` to fill in, which checks as it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shardlang.check.train.settings import RESERVED
from shardlang.errors import RunError
from shardlang.importing.bodies.body import free
from shardlang.importing.bodies.dims import flat
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.names import identifier
from shardlang.importing.text.terms import Terms


def training(model: Model, terms: Terms, inputs: Mapping[str, Tensor], sizes: Mapping[str, int], count: int,
             init: str) -> str:  # fmt: skip
    """The text. sizes: of the dims that the model takes as arguments; count: of its results; init:
    a line for the weights, or none."""
    fields, dims = _fields(model, terms, inputs)
    taken = {name for name, _ in fields}
    names = [free(f"out{at}" if count > 1 else "out", taken) for at in range(count)]
    loss = " + ".join(f"mean(square({name}))" for name in names)
    lines = [
        *[f"dim {', '.join(f'{name} = {size}' for name, size in dims.items())}", ""] * bool(dims),
        "# Fill in: a source of your data, a loss, for how long.", "train {",
        f"  model = {model.name}({', '.join(f'{name} = {size}' for name, size in sizes.items())})",
        f"  data = random({', '.join(f'{name}: {type}' for name, type in fields)}, batches = 4)",
        f"  {', '.join(names)} = model({', '.join(name for name, _ in fields)})",
        f"  loss = {loss}", "  optimizer = adamw(lr = 0.001)", "  steps = 100", *([f"  {init}"] if init else []), "}",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _fields(model: Model, terms: Terms, inputs: Mapping[str, Tensor]) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The names and types of the fields of the data, and the dims of the file that they have: the
    first of each, as a name of the file stands for one size everywhere, in its models too: so it is
    none of theirs. RunError SH600 where they share no first dim."""
    fields: list[tuple[str, str]] = []
    dims: dict[str, int] = {}
    taken, theirs = set(RESERVED), {name for names in terms.namer.names.values() for name in names.values()}
    first = {flat(value.dims[0]) for value in model.body.inputs}
    if len(first) > 1:
        begin = ", ".join(f"`{value.name}` with `{terms.term(model, value.dims[0])}`" for value in model.body.inputs)
        fact = f"`--train` needs the batch first in all inputs, as it is in data; they begin otherwise: {begin}"
        help = "leave `--train` out, and write a `train` that turns fields by `rearrange` or cuts them"
        raise RunError("SH600", fact, help=help)
    for value, each in zip(model.body.inputs, inputs.values(), strict=True):
        rows = terms.term(model, value.dims[0])
        if rows.isidentifier():
            rows = next(iter(dims), "") or free(f"{rows}_size", theirs)
            dims[rows] = each.shape[0]
        sizes = [rows, *map(str, each.shape[1:])]
        bound = f" < {int(each.max()) + 1}" if value.kind == "i64" else ""
        fields.append((free(identifier(value.name), taken), f"{value.kind}[{', '.join(sizes)}]{bound}"))
    return fields, dims
