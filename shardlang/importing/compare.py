"""The graph of a written program beside the traced module, both in float64: results and gradients.

The loss is the results times fixed random numbers. Dropout is off on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.graph.graph import Graph, Kind
from shardlang.importing.steps.frequencies import exact, wide
from shardlang.importing.steps.trace import SKIPPED, in_double
from shardlang.importing.text.maps import MapLine
from shardlang.interpret.meaning import whole
from shardlang.interpret.meaning.elements import graph_in_type
from shardlang.sources.source import Source

ALLOWED = 1e-9
_OURS = "this is a fault of shardc: please report it, with the module"


@dataclasses.dataclass(frozen=True)
class Side:
    """All that one side computes: results, and gradients by the path of a parameter."""

    results: Sequence[Tensor]
    gradients: Mapping[str, Tensor]


def masked(inputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The inputs with padding, as batches have it: of whole numbers that are all 1, and of truths
    that are all one, a row ends in the other, each from another place on, but not from the first.
    None where there are none."""
    found = {}
    for name, each in inputs.items():
        hides = each.dtype == torch.bool and not bool(each.any())
        if not each.is_floating_point() and each.dim() > 1 and (hides or bool((each == 1).all())):
            wide, rows = each.shape[-1], each.numel() // each.shape[-1]
            kept = 1 + torch.arange(rows, 0, -1) * (wide - 1) // (rows + 1)
            shown = (torch.arange(wide) < kept[:, None]).reshape(each.shape)
            found[name] = ~shown if hides else shown.to(each.dtype)
    return {**inputs, **found} if found else None


class _Exact(torch.fx.Interpreter):
    """Runs a traced graph in float64 and without dropout. evaluates: whether norms of a batch have
    the statistics that they keep."""

    def __init__(self, graph: torch.fx.GraphModule, evaluates: bool = False) -> None:
        super().__init__(graph)
        self.evaluates = evaluates

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = str(getattr(target, "overloadpacket", target))
        if name in SKIPPED:
            return None
        if name in ("aten.hardsigmoid", "aten.hardsigmoid_"):
            return ((args[0] + 3) / 6).clamp(0, 1)  # torch's gradient has a sixth in f32, in f64 too
        if name in DRAWN:
            return drawn(DRAWN[name], args[0].shape if name.endswith("like") else args[0])
        if name == "aten.copy_" and args[0] is args[1]:
            return args[0]
        if name == "aten.topk":
            return top_k(*torch.utils._pytree.tree_map(wide, args), **kwargs)
        graphs = [each for each in args if isinstance(each, torch.fx.GraphModule)]
        if graphs:
            rest = args[args.index(graphs[0]) + 1 :]
            with torch.set_grad_enabled(args[0] if isinstance(args[0], bool) else torch.is_grad_enabled()):
                return _Exact(graphs[0], self.evaluates).run(*rest)
        args = torch.utils._pytree.tree_map(wide, args)
        kwargs = torch.utils._pytree.tree_map(wide, kwargs)
        if name in ("aten.dropout", "aten.dropout_", "aten.feature_dropout"):
            args = (args[0], 0.0, *args[2:])
        if name == "aten.batch_norm" and self.evaluates:
            args = (*args[:5], args[3] is None, *args[6:])
        if name in ("aten.lstm", "aten.gru"):
            args = tuple(0.0 if at == 5 else each for at, each in enumerate(args))
        if name == "aten.scaled_dot_product_attention":
            args = tuple(0.0 if at == 4 else each for at, each in enumerate(args))
            kwargs = {key: 0.0 if key == "dropout_p" else each for key, each in kwargs.items()}
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return wide(super().get_attr(target, args, kwargs))


def top_k(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k greatest, of equal ones the first. torch leaves open which of these it takes; the
    language takes the first."""
    values, places = x.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


# Random numbers, which both sides have alike.
DRAWN = {"aten.rand": "rand", "aten.rand_like": "rand", "aten.randn": "randn", "aten.randn_like": "randn"}


def drawn(kind: str, shape: Sequence[int]) -> Tensor:
    draw = torch.rand if kind == "rand" else torch.randn
    return draw(tuple(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def varied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module to compare with. A parameter of one number, as zeros and ones are,
    has small random numbers added: zeros would hide what they are multiplied with, and any of equal
    scores may be chosen."""
    draws = torch.Generator().manual_seed(1)
    made: dict[int, Tensor] = {}
    for each in tensors.values():
        alike = isinstance(each, torch.nn.Parameter) and each.is_floating_point() and each.numel() > 0
        if id(each) not in made and alike and bool((each == each.flatten()[0]).all()):
            noise = 0.1 * torch.rand(each.shape, generator=draws).to(each.dtype)
            made[id(each)] = torch.nn.Parameter(each.detach() + noise, each.requires_grad)
    return {name: made.get(id(each), each) for name, each in tensors.items()}


def theirs(program: Any, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor], lines: Sequence[MapLine],
           used: Sequence[int], evaluates: bool = False, seed: int = 0) -> Side:  # fmt: skip
    """The traced module's side. used: which of its results the program gives. evaluates: of
    `_Exact`. seed: where it is not 0, each number is moved by a unit in the last place."""
    draws = torch.Generator().manual_seed(seed) if seed else None
    copies = {id(each): _moved(wide(each.detach().clone()), draws) for each in tensors.values()}
    for each in copies.values():
        each.requires_grad_(each.is_floating_point())
    named = {name: copies[id(each)] for name, each in tensors.items()}
    given: list[Any] = []
    fields = iter(inputs.values())
    for spec in program.graph_signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            given.append(_moved(wide(next(fields)), draws))
        elif kind == "CONSTANT_TENSOR":
            given.append(wide(program.constants[spec.target]))
        else:
            given.append(named[spec.target] if kind == "PARAMETER" else exact(tensors[spec.target].detach()).clone())
    with in_double():
        made = _Exact(program.graph_module, evaluates).run(*given)
    results = [made[at] for at in used]
    loss = sum((each * probe).sum() for each, probe in zip(results, probes(results), strict=True))
    wanted = [named[line.stored.name] for line in lines]
    reached = isinstance(loss, Tensor) and loss.requires_grad
    found: Sequence[Tensor] = [torch.zeros_like(each) for each in wanted]
    if reached and wanted:
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return Side([each.detach() for each in results],
                {line.ours: line.stored.of(each) for line, each in zip(lines, found, strict=True)})  # fmt: skip


def _moved(x: Tensor, draws: torch.Generator | None) -> Tensor:
    """Numbers of floating point, each moved up or down by a unit in the last place."""
    if draws is None or x.dtype != torch.float64:
        return x
    return x * (1 + (2 * torch.randint(2, x.shape, generator=draws) - 1).double() * torch.finfo(x.dtype).eps)


def probes(results: Sequence[Tensor]) -> list[Tensor]:
    """Fixed random numbers in the shapes of results."""
    draws = torch.Generator().manual_seed(0)
    return [torch.rand(each.shape, generator=draws, dtype=torch.float64) - 0.5 for each in results]


def ours(text: str, model: str, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor], lines: Sequence[MapLine],
         shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int], home: Path, batched: bool) -> Side:  # fmt: skip
    """The program's side. sizes: of dims that the model takes as arguments. home: the folder of
    operators of its own. batched: whether all inputs and results have one dim first."""
    called = f"{model}({', '.join(f'{name} = {size}' for name, size in sizes.items())})"
    graph = _graph(f"{text}\n{_training(called, list(inputs.values()), shapes, batched)}", home)
    given = {line.ours: line.stored.of(_numbers(tensors[line.stored.name])).double() for line in lines}
    params = {}
    for value in (*graph.params, *graph.states):
        path = graph.values[value].path
        if path not in given:
            raise RunError("SH607", f"the program that was written has `{path}`, which its name map lacks", help=_OURS)
        params[value] = given[path]
    numbers = {f"probe{at}": each for at, each in enumerate(probes([torch.empty(shape) for shape in shapes]))}
    numbers |= {f"in{at}": each for at, each in enumerate(inputs.values())}
    fields = {value: wide(numbers[graph.values[value].name.removesuffix("_field")]) for value in graph.data}
    fields = fields if batched else {value: each[None] for value, each in fields.items()}
    exact_graph, draws = _exact(graph)
    found = whole.run(exact_graph, fields | draws, params)
    paths = {graph.values[value].path: value for value in graph.params}
    results = [found.values[graph.addresses[f"train.out{at}"][0]] for at in range(len(shapes))]
    return Side(results, {path: found.gradients[value] for path, value in paths.items() if value in found.gradients})


def _numbers(tensor: Tensor) -> Tensor:
    """A tensor of the module; of a buffer, what it stands for."""
    return tensor.detach() if isinstance(tensor, torch.nn.Parameter) else exact(tensor.detach())


def stands(text: str, model: str, inputs: Mapping[str, Tensor], count: int, sizes: Mapping[str, int]) -> bool:
    """Whether shardc takes the program with inputs of these sizes: it may hold at some alone, as
    where it adds a table of so many rows. count: of its results; sizes: as of `ours`."""
    called = f"{model}({', '.join(f'{name} = {size}' for name, size in sizes.items())})"
    whole = f"{text}\n{_training(called, list(inputs.values()), [None] * count, False)}"
    return driver.check_source(Source("imported.shard", whole), Sink()) is not None


def _training(model: str, inputs: Sequence[Tensor], shapes: Sequence[tuple[int, ...] | None], batched: bool) -> str:
    """A `train` that computes the loss of `theirs`, of results without a shape their sum. batched:
    of `ours`; without it each field has a first dim of one element more, since those of a source
    share their first dim."""
    given = [(f"in{at}", *_kind(each), tuple(each.shape)) for at, each in enumerate(inputs)]
    probed = {f"probe{at}": shape for at, shape in enumerate(shapes) if shape is not None}
    given += [(name, "", "", shape) for name, shape in probed.items()]
    fields, values = [], []
    for name, kind, bound, shape in given:
        field = name if batched else f"{name}_field"
        sizes = ", ".join(["import_batch", *map(str, shape[batched:])])
        fields.append(f"{field}: {kind}[{sizes}]{bound}")
        values += [] if batched else [f"  {name} = {field}[import_batch = 0]"]
    names = [f"out{at}" for at in range(len(shapes))]
    called = ", ".join(f"in{at}" for at in range(len(inputs)))
    loss = [f"sum({name} * probe{at})" if f"probe{at}" in probed else f"sum({name})" for at, name in enumerate(names)]
    return "\n".join([
        f"dim import_batch = {inputs[0].shape[0] if batched else 1}", "", "train {", f"  model = {model}",
        f"  data = random({', '.join(fields)}, batches = 1)", *values, f"  {', '.join(names)} = model({called})",
        f"  loss = {' + '.join(loss)}",
        # No step reads the file: what is given is compared in the module's numbers.
        "  optimizer = sgd(lr = 0.1)", "  epochs = 1", '  init = safetensors("import.safetensors")', "}", "",
    ])  # fmt: skip


def _kind(each: Tensor) -> tuple[str, str]:
    """The element type and the bound of a field that has an input."""
    if each.is_floating_point():
        return "", ""
    return ("bool", "") if each.dtype == torch.bool else ("i64", f" < {max(int(each.max()) + 1, 2)}")


def _graph(text: str, home: Path) -> Graph:
    sink = Sink()
    program = driver.check_source(Source(str(home / "imported.shard"), text), sink)
    if program is None:
        raise fault(sink, text)
    return program.graph


def fault(sink: Sink, text: str) -> RunError:
    """SH607 for a text that shardc itself refuses, with the first such line."""
    found = sink.found[0]
    line = text.splitlines()[found.primary.span.line - 1].strip() if found.primary else ""
    fact = f"the program that was written has a mistake, {found.code} in `{line}`: {found.message}"
    return RunError("SH607", fact, help=_OURS)


def _exact(graph: Graph) -> tuple[Graph, dict[int, Tensor]]:
    """The graph in float64, without dropout; and its random numbers, as data."""
    random = {op.results[0]: op.operator for op in graph.ops if op.operator in ("rand", "randn")}
    ops = tuple(dataclasses.replace(op, attrs={**op.attrs, "p": 0.0}) if "p" in op.attrs else op
                for op in graph.ops if op.results[0] not in random)  # fmt: skip
    values = tuple(dataclasses.replace(each, kind=Kind.DATA) if each.id in random else each for each in graph.values)
    draws = {value: drawn(kind, graph.values[value].type.shape) for value, kind in random.items()}
    changed = dataclasses.replace(graph, ops=ops, values=values, data=(*graph.data, *random))
    return graph_in_type(changed, "f64"), draws


def compare(one: Side, other: Side, moved: Callable[[], Sequence[Side]] = tuple) -> float:
    """The largest relative difference of two sides. moved: the other side again, its numbers moved
    by a unit in the last place each time. The gradient of a bias before a norm is 0 in truth: it
    moves as far as it is large, and differs by no more. RunError SH607 where a difference is too
    large."""
    pairs = [(f"result {at + 1}", a, b) for at, (a, b) in enumerate(zip(one.results, other.results, strict=True))]
    pairs += [(f"the gradient of `{path}`", one.gradients[path], other.gradients[path])
              for path in one.gradients if path in other.gradients]  # fmt: skip
    worst = 0.0
    # Rounding leaves some 1e-15 of the largest gradient where one cancels to 0, so a gradient
    # counts as at least 1e-5 of the largest.
    scale = max((float(each.abs().max()) for each in one.gradients.values() if each.numel()), default=1.0)
    for what, mine, theirs in pairs:
        size = max(float(theirs.abs().max()), 1e-6 if what.startswith("result") else 1e-5 * scale)
        error = float((mine - theirs).abs().max()) / size if mine.shape == theirs.shape else float("inf")
        if not error <= ALLOWED:
            path = what.removeprefix("the gradient of `").rstrip("`")
            if path in other.gradients and _is_zero(mine, theirs, [each.gradients[path] for each in moved()]):
                continue
            fact = f"{what} differs from the module's, by {error:.2g} of its largest number"
            raise RunError("SH607", fact, help=_OURS)
        worst = max(worst, error)
    return worst


def _is_zero(mine: Tensor, theirs: Tensor, moved: Sequence[Tensor]) -> bool:
    """Whether a value and its difference are no larger than rounding makes them, as of `verify`."""
    if mine.shape != theirs.shape:
        return False
    furthest = max((float((each - theirs).abs().max()) for each in moved), default=0.0)
    return max(float(theirs.abs().max()), float((mine - theirs).abs().max())) <= 8 * furthest
