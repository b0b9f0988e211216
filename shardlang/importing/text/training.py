"""A model and its example tensors -> a `train` to fill in, which checks as it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from shardlang.importing.bodies.models import Model
from shardlang.importing.text.terms import Terms


def training(model: Model, terms: Terms, inputs: Mapping[str, Tensor], sizes: Mapping[str, int], count: int,
             init: str) -> str:  # fmt: skip
    """The text. sizes: of the dims that the model takes as arguments; count: of its results; init:
    a line for the weights, or none."""
    fields, dims = _fields(model, terms, inputs)
    names = [f"out{at}" for at in range(count)] if count > 1 else ["out"]
    loss = " + ".join(f"mean(square({name}))" for name in names)
    lines = [
        *[f"dim {', '.join(f'{name} = {size}' for name, size in dims.items())}", ""] * bool(dims),
        "# Fill in: a source of your data, a loss, for how long.", "train {",
        f"  model = {model.name}({', '.join(f'{name} = {size}' for name, size in sizes.items())})",
        f"  data = random({', '.join(fields)}, batches = 4)", f"  {', '.join(names)} = model({', '.join(inputs)})",
        f"  loss = {loss}", "  optimizer = adamw(lr = 0.001)", "  steps = 100", *([f"  {init}"] if init else []), "}",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _fields(model: Model, terms: Terms, inputs: Mapping[str, Tensor]) -> tuple[list[str], dict[str, int]]:
    """The fields of the data, and the dims of the file that they have: the first of each, as a name
    of the file stands for one size everywhere."""
    fields: list[str] = []
    dims: dict[str, int] = {}
    for value, each in zip(model.body.inputs, inputs.values(), strict=True):
        rows = terms.term(model, value.dims[0])
        if rows.isidentifier():
            dims[rows] = each.shape[0]
        sizes = [rows, *map(str, each.shape[1:])]
        bound = f" < {int(each.max()) + 1}" if value.kind == "i64" else ""
        fields.append(f"{value.name}: {value.kind}[{', '.join(sizes)}]{bound}")
    return fields, dims
