"""A module and example tensors -> its steps, by torch.export; what depends on no input is computed.

Sizes are fixed, and the module is in training mode."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.authors.lines import Lines, place_of, whole_stacks
from shardlang.importing.authors.marks import Marks
from shardlang.importing.steps.frequencies import wide
from shardlang.importing.steps.nodes import CONST, INPUT, LEAVES, PARAM, STATE, Node, Scope, Stored, Traced, mapped
from shardlang.importing.steps.problems import Refused, refusal
from shardlang.importing.steps.unfold import is_number
from shardlang.importing.steps.writes import VIEWS, chain, name_of, put, value_of, views_read_later

# Steps that have effects on buffers alone, or none at all.
# What BatchNorm counts changes nothing that it computes.
_COUNTS = "num_batches_tracked"
SKIPPED = ("aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range_for_size")


def trace(module: nn.Module, inputs: Mapping[str, Tensor], place: str) -> tuple[Traced, Any]:
    """The steps of `module(**inputs)`, and torch's program. RunError SH600 or SH602 if torch cannot
    trace it."""
    module.train()
    marks = Marks()
    try:
        with quiet(), marks.of(module), whole_stacks():
            program = torch.export.export(module, (), dict(inputs), strict=False)
    except Exception as error:
        raise _untraced(error, place) from error
    for node in program.graph.nodes:
        symbols = [size for size in getattr(node.meta.get("val"), "shape", ()) if not isinstance(size, int)]
        if symbols:
            where, line = place_of(node.meta.get("stack_trace") or "")
            raise _by_values(place, f"how many numbers `{line or name_of(node.target)}` gives, {where}")
    found = marks.read(program.graph_module)
    reader = _Reader(module, program, dict(inputs))
    traced = reader.read()
    steps = [dataclasses.replace(mark, node=reader.known.get(mark.node)) for mark in found]
    traced.marks = [mark for mark in steps if isinstance(mark.node, Node)]
    return traced, program


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what torch logs and prints of a failing trace from the user: the error says it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _untraced(error: Exception, place: str) -> RunError:
    """SH602 where the graph would depend on values of the data, else SH600."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = next((line for line in lines if line.strip()), "")
    if re.search("data.?dependent", f"{error} {type(error).__name__}", re.IGNORECASE):
        where, line = place_of("".join(traceback.format_tb(error.__traceback__)))
        return _by_values(place, f"`{line}`, {where}" if line else text)
    help = "give example tensors by the names of forward's arguments; models of transformers want use_cache = False"
    return RunError("SH600", f"torch cannot trace `{place}`: {text}", help=help)


def _by_values(place: str, what: str) -> RunError:
    help = "write it with `where`, so that the same steps are computed for all data"
    return RunError("SH602", f"the steps of `{place}` depend on values of the data: {what}", help=help)


class _Reader:
    """Turns an exported program into steps."""

    def __init__(self, module: nn.Module, program: Any, inputs: dict[str, Tensor]) -> None:
        self.program, self.inputs = program, inputs
        self.owners = first_names(module)
        self.tensors = all_tensors(module)
        self.names = tied_names(self.tensors)
        self.known: dict[Any, Any] = {}
        self.traced = Traced([], {}, {})
        self.refused: list[Refused] = []
        self.lines = Lines()

    def read(self) -> Traced:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        self._tied(specs)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.known[node] = self._leaf(node, specs[node.name])
            elif node.op == "get_attr":
                self.known[node] = self._attribute(node)
            elif node.op == "call_function":
                self.known[node] = self._call(node)
            else:
                self._outputs(node.args[0])
        self.traced.sweep()
        if self.refused:
            raise refusal(self.refused, plain=False)
        return self.traced

    def _tied(self, specs: Mapping[str, Any]) -> None:
        """Gives a tied tensor the name that the module has which uses it first."""
        for node in self.program.graph.nodes:
            spec = specs.get(node.name) if node.op == "placeholder" else None
            if spec is None or not node.users:
                continue
            tied = self.names.get(spec.target, [])
            if len(tied) > 1:
                scopes = _scopes(next(each for each in self.program.graph.nodes if each in node.users))
                path = scopes[-1].path if scopes else ""
                here = [name for name in tied if name.rpartition(".")[0] == path]
                self.owners.update({id(self.tensors[spec.target]): name for name in here[:1]})

    def _leaf(self, node: Any, spec: Any) -> Any:
        kind = spec.kind.name
        value = node.meta.get("val")
        if kind == "USER_INPUT":
            if not isinstance(value, torch.Tensor):
                return value
            # torch may put something behind a name, and one may begin as another does.
            name = max((n for n in self.inputs if node.name.startswith(n)), key=len)
            leaf = Node(INPUT, shape=tuple(value.shape), dtype=value.dtype, name=name, place="its arguments")
            self.traced.inputs[name] = self._add(leaf)
            return leaf
        if kind == "CONSTANT_TENSOR":
            return self._const(self.program.constants[spec.target], node)
        written = self.program.graph_signature.buffers_to_mutate.values()
        if kind == "BUFFER" and not (spec.persistent or value.dtype.is_floating_point or spec.target in written):
            return self._const(self.tensors[spec.target], node)
        owner = self.owners.get(id(self.tensors.get(spec.target)), spec.target)
        op = PARAM if kind == "PARAMETER" else STATE
        tensor = self.tensors[spec.target]
        leaf = Node(op, shape=tuple(value.shape), dtype=value.dtype, name=owner, stored=Stored(owner), value=tensor)
        return self._once(leaf)

    def _once(self, leaf: Node) -> Node:
        """The leaf of a name, one for tied parameters."""
        for other in self.traced.nodes:
            if other.op == leaf.op and other.name == leaf.name:
                return other
        return self._add(leaf)

    def _attribute(self, node: Any) -> Any:
        value: Any = self.program.graph_module
        for part in node.target.split("."):
            value = getattr(value, part)
        return self._const(value, node) if isinstance(value, Tensor) else value

    def _call(self, node: Any) -> Any:
        args = torch.fx.node.map_arg(node.args, lambda n: self.known[n])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: self.known[n])
        name = name_of(node.target)
        if node.target is operator.getitem:
            return self._item(node, args)
        region = next((each for each in args if isinstance(each, torch.fx.GraphModule)), None)
        if region is not None:
            return self._region(region, args)
        if name in SKIPPED:
            return None
        step = self._step(node, name, args, kwargs)
        if name == "aten.topk" and _of_one(step):
            first = args[0]
            return [first, self._const(torch.zeros(first.shape, dtype=torch.int64), node)]
        if name in _SHARES and step.shape and step.shape[args[1]] == 1:
            return self._const(torch.ones(step.shape, dtype=step.dtype), node)
        if name in _FILLS:
            return self._fill(node, step, args)
        inputs = step.inputs()
        if name.endswith("_") and not name.endswith("__"):
            return self._in_place(node, step, inputs)
        if name in _CHOICES and inputs and _same_everywhere(inputs[0]):
            return self._const(torch.full(step.shape, inputs[0].value.flatten()[0].item(), dtype=step.dtype), node)
        if all(each.op in (CONST, STATE) for each in inputs) and name not in _RANDOM:
            return self._computed(node, step)
        if ("val" in node.meta and isinstance(node.meta["val"], torch.Tensor)) or name.startswith("aten."):
            return self._add(step)
        if not name.startswith("<built-in"):  # a check of numbers that nothing else may read
            self.refused.append(Refused(step, f"`{name}`"))
        return step

    def _region(self, region: Any, args: Any) -> list[Any]:
        """The results of a part that has no gradient or another precision, its steps as others."""
        at = next(at for at, each in enumerate(args) if each is region)
        given = iter(args[at + 1 :])
        results: list[Any] = []
        for node in region.graph.nodes:
            if node.op == "placeholder":
                self.known[node] = next(given)
            elif node.op == "call_function":
                self.known[node] = self._call(node)
            elif node.op == "output":
                results = [self.known[each] for each in node.args[0]]
        if args[0] is not False:
            return results
        # What is given to it comes out as it is: `x.to(x.dtype)` is x.
        through = [each.itself() if isinstance(each, Node) else each for each in results]
        return [each if not isinstance(each, Node) or each.op in LEAVES or each in args
                else self._add(each.like("aten.detach", each)) for each in through]  # fmt: skip

    def _fill(self, node: Any, step: Node, args: Any) -> Node:
        """`zeros_like(x)`: a constant that depends on the shape of x alone."""
        number = {"zeros": 0, "ones": 1, "empty": 0}.get(re.sub("_like$|^new_", "", step.op.removeprefix("aten.")))
        value = args[1 if step.op == "aten.full_like" else 2] if number is None else number
        value = value.value.item() if isinstance(value, Node) else value
        return self._const(torch.full(step.shape, value, dtype=step.dtype), node)

    def _in_place(self, node: Any, step: Node, inputs: list[Node]) -> Any:
        """`x.relu_()`: all that reads x from now on reads the result."""
        target = node.args[0]
        if inputs[0].op == STATE:
            if inputs[0].name.endswith(_COUNTS):
                return inputs[0]
            self.traced.updated[inputs[0].name] = step
            step.op = step.op.rstrip("_")
            # What reads the buffer from now on reads its new value.
            self.known[target] = inputs[1] if step.op == "aten.copy" else self._add(step)
            return self.known[target]
        if inputs[0].op == CONST and all(each.op in (CONST, STATE) for each in inputs):
            return self._constant_in_place(node, step)
        step.op = step.op.rstrip("_")
        return self._written(node, step)

    def _written(self, node: Any, step: Node) -> Any:
        """A tensor that is written into: it, what it is a part of, and other parts of that are
        others from now on."""
        step.order = len(self.traced.nodes)
        places, value = chain(node.args[0]), value_of(step)
        owner = self.known[places[-1]].op
        # What is given to a region is also read outside of it.
        if owner in (PARAM, INPUT) or (len(places) > 1 and places[-1].op != "call_function"):
            self.refused.append(Refused(step, f"`{step.op}` in place on a part of another tensor"))
        self.known[places[0]] = now = value if value in step.args else self._add(value)
        for view, whole in itertools.pairwise(places):
            here = dataclasses.replace(step, order=len(self.traced.nodes))
            made = put(view, here, self.known[whole], now)
            if made is None:
                self.refused.append(Refused(step, f"`{step.op}` in place on a part in several pieces"))
                return now
            self.known[whole] = now = self._add(made)
        for view in views_read_later(places[-1], node):
            self.known[view] = self._call(view)
        return self.known[places[0]]

    def _constant_in_place(self, node: Any, step: Node) -> Any:
        """A constant that is changed. If it is a part of another one, no steps tell the whole."""
        before: Node = step.args[0]
        kept = dataclasses.replace(before, value=before.value.clone())
        found = self._computed(node, step)
        base: Node | None = before
        while base is not None and base.op == CONST:
            made = base.made
            base.made = None
            base = made.args[0] if made is not None and made.op in VIEWS else None
        step.op, step.args = step.op.rstrip("_"), (kept, *step.args[1:])
        found.made = step if kept.made is None or kept.made.op not in VIEWS else None
        self.known[node.args[0]] = found
        return found

    def _item(self, node: Any, args: Any) -> Any:
        source, number = args
        if not isinstance(source, Node):
            return source[number]
        return self._add(self._step(node, "item", (source, number), {}))

    def _computed(self, node: Any, step: Node) -> Any:
        """A step that depends on no input, as a constant; statistics that are moved are none."""
        if step.op == "aten.batch_norm":
            return self._add(step)
        given = (step.args, tuple(step.kwargs.values()))
        args, kwargs = (torch.utils._pytree.tree_map(wide, mapped(each, lambda n: n.value)) for each in given)
        with torch.no_grad(), in_double():
            found = node.target(*args, **dict(zip(step.kwargs, kwargs, strict=True)))
        if isinstance(found, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(found):
            # What vmap makes has numbers only while it runs.
            self.refused.append(Refused(step, "`torch.vmap`"))
            return self._add(step)
        if isinstance(found, Tensor):
            return self._const(found, node, step)
        if isinstance(found, list | tuple):
            parts = [dataclasses.replace(step, op="item", args=(step, at), kwargs={}) for at in range(len(found))]
            return [self._const(each, node, part) if isinstance(each, Tensor) else each
                    for each, part in zip(found, parts, strict=True)]  # fmt: skip
        return found

    def _const(self, value: Tensor, node: Any, made: Node | None = None) -> Node:
        const = self._add(self._step(node, CONST, (), {}, value.detach()))
        const.made = made
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor) and meta.shape == const.value.shape:
            const.dtype = meta.dtype
        if made is not None:
            made.shape, made.dtype, made.order = const.shape, const.dtype, const.order
        return const

    def _step(self, node: Any, op: str, args: Any, kwargs: Any, value: Any = None) -> Node:
        meta = value if isinstance(value, Tensor) else node.meta.get("val")
        shape = tuple(map(int, meta.shape)) if isinstance(meta, torch.Tensor) else ()
        stack = node.meta.get("stack_trace") or ""
        (place, code), scopes, levels = place_of(stack), _scopes(node), self.lines.levels(stack)
        return Node(op, tuple(args), dict(kwargs), shape=shape, dtype=getattr(meta, "dtype", None), scopes=scopes,
                    place=place, code=code, name=node.name, value=value,
                    levels=levels if len(levels) == len(scopes) + 1 else ())  # fmt: skip

    def _add(self, node: Node) -> Node:
        node.order = len(self.traced.nodes)
        self.traced.nodes.append(node)
        return node

    def _outputs(self, results: Any) -> None:
        specs = self.program.module_call_graph[0].signature.out_spec
        names = [_key(path) for path, _ in torch.utils._pytree.tree_flatten_with_path(
            torch.utils._pytree.tree_unflatten(list(results), specs))[0]]  # fmt: skip
        for name, result in zip(names, results, strict=True):
            value = self.known.get(result, result)
            if isinstance(value, Node):
                self.traced.outputs[name or "result"] = value


def _of_one(step: Node) -> bool:
    """Whether the greatest of one element are chosen: itself, at place 0."""
    x, dim = step.args[0], step.args[2] if len(step.args) > 2 else step.kwargs.get("dim", -1)
    return bool(x.shape and x.shape[dim] == 1)


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Tensors that are made without a type are in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# What is filled with a number, in the shape of another tensor.
_FILLS = ("aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.new_zeros", "aten.new_ones",
          "aten.new_full", "aten.new_empty")  # fmt: skip
_SHARES = ("aten.softmax", "aten._softmax")
_CHOICES = ("aten.gather", "aten.index", "aten.index_select", "aten.embedding")
_RANDOM = ("aten.rand", "aten.randn", "aten.rand_like", "aten.randn_like", "aten.randint", "aten.randperm",
           "aten.bernoulli", "aten.normal", "aten.uniform", "aten.bernoulli_", "aten.normal_", "aten.uniform_",
           "aten.multinomial")  # fmt: skip


def _same_everywhere(node: Node) -> bool:
    """Whether a constant, or a buffer of whole numbers, has one number alone."""
    if node.op != STATE:
        return is_number(node)
    return not node.value.is_floating_point() and bool((node.value == node.value.flatten()[0]).all())


def first_names(module: nn.Module) -> dict[int, str]:
    """The first name of each tensor of a module, by its identity: tied ones share it."""
    return {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def all_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by each of their names."""
    return {**dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False))}  # fmt: skip


def tied_names(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """All names of a tensor, by each of them."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {name: names[id(tensor)] for name, tensor in tensors.items()}


def _scopes(node: Any) -> tuple[Scope, ...]:
    stack = (node.meta.get("nn_module_stack") or {}).items()
    return tuple(Scope(re.sub(r"@\d+", "", path), call, kind if isinstance(kind, str) else kind.__name__)
                 for call, (path, kind) in stack if path)  # fmt: skip


def _key(path: Any) -> str:
    """The name of a result in the structure that forward gives."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
