"""The head of an emitted file: what it is, what it imports, its meshes and its parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from shardlang.check.own import OwnDefinition
from shardlang.emit.text.citations import file_text
from shardlang.emit.text.fold import Item, Layers, folded
from shardlang.emit.text.lines import WIDTH, call_text
from shardlang.emit.text.names import is_plain
from shardlang.emit.text.sizes import Groups
from shardlang.folds.fits import node_devices
from shardlang.graph.graph import GraphValue, Kind
from shardlang.ops import python_text
from shardlang.ops.declared import DECLARED
from shardlang.ops.python_text import literal
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.blocks.kinds import kinds_of
from shardlang.types.dim import TensorType, low
from shardlang.types.layout import Layout, identical, uneven_sizes
from shardlang.types.mesh import Mesh

_IMPORTS = (("torch", "import torch"), ("F", "import torch.nn.functional as F"))


def place_text(plan: Plan) -> str:
    """The program, its strategy and ranks, in words."""
    file = file_text(plan.program.source, plan.program.source)
    ranks = "1 rank" if plan.ranks == 1 else f"{plan.ranks} ranks"
    strategy = f", strategy `{plan.strategy}`" if plan.strategy else ""
    return f"{file}{strategy}, on {ranks}"


def docstring(plan: Plan) -> str:
    """The file's docstring: what it is and how to run it."""
    parts = ", a microbatch at a time" if plan.microbatches > 1 else ""
    if plan.pipeline is not None:
        said = (
            "Written by shardc from the program and its strategy. Each pipeline stage has its own file;",
            "this one has the parameters, the data and the order in which the stages work. Run it with",
        )
    else:
        said = (
            f"Written by shardc from the program and its strategy. Each rank runs this file on its own shards{parts};",
            "a comment gives a value's local type and its layout on the mesh. Run it with",
        )
    return python_text.docstring(f"{place_text(plan)}.", *said, "", f"    {started(plan)} main.py")


def started(plan: Plan) -> str:
    """The command that starts the ranks, up to the file; of several hosts the first is HOST."""
    each = node_devices(plan.program)
    if not 0 < each < plan.ranks or plan.ranks % each:
        return f"torchrun --nproc-per-node {plan.ranks}"
    return f"torchrun --nnodes {plan.ranks // each} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST"


def imports(
    uses: Collection[str], modules: Sequence[str] = (), names: Mapping[str, Sequence[str]] | None = None,
) -> str:  # fmt: skip
    """The imports of a file that uses these; modules: files beside it; names: what it takes of
    further ones, by file."""
    lines = [f"import {module}" for module in modules] + [line for name, line in _IMPORTS if name in uses]
    for file, given in (names or {}).items():
        flat = f"from {file} import {', '.join(given)}"
        lines += [flat if len(flat) <= WIDTH else f"from {file} import {call_text('', given)}"] if given else []
    # Ours first: it says what to install where torch is missing, and sets what is read while torch
    # is loaded.
    own = "from shardlang import runtime as rt" if "rt" in uses else ""
    return "\n\n".join(filter(None, [own, "\n".join(lines)]))


def own_files(plan: Plan) -> str:
    """`own = rt.Declared({...})`: the Python files of operators, sources and others that files
    declare, with hashes, or ""."""
    declared = [op.attrs[DECLARED] for op in plan.graph.ops if op.operator == DECLARED]
    further = plan.program.training.own if plan.program.training is not None else ()
    files = sorted({each.file: each.source for each in (*declared, *further)}.items())
    lines = "".join(f"    {literal(file)}: {literal(source)},\n" for file, source in files)
    return f"own = rt.Declared({{\n{lines}}})" if files else ""


def own_text(own: OwnDefinition) -> str:
    """`own.named("my_data.py", "Clicks")`: a function of such a file."""
    return f"own.named({literal(own.file)}, {literal(own.function)})"


def mesh_lines(plan: Plan) -> str:
    """`mesh = rt.Mesh(a=2, b=4, microbatch=rt.Time(4))`, a line a mesh."""
    pipeline, meshes = plan.pipeline, list(plan.meshes)
    if pipeline is not None:
        time = meshes[0].time
        meshes[0] = Mesh((*pipeline.mesh.axes, *([time] if time else [])), meshes[0].name)
    of = f"(mesh, {literal(pipeline.axis)}), " if pipeline is not None else ""
    return "\n".join(
        f"{mesh.name} = rt.Mesh({of if number else ''}{_mesh_arguments(mesh)})" for number, mesh in enumerate(meshes)
    )


def _mesh_arguments(mesh: Mesh) -> str:
    sizes = [(axis.name, f"rt.Time({axis.size})" if axis.time else str(axis.size)) for axis in mesh.axes]
    if all(is_plain(name) for name, _ in sizes):
        return ", ".join(f"{name}={size}" for name, size in sizes)
    return "**{" + ", ".join(f"{literal(name)}: {size}" for name, size in sizes) + "}"


def parameter_lines(plan: Plan, groups: Groups) -> str:
    """`parameters = [...]`, an item a line, in the program's order; equal layers once."""
    said: dict[object, tuple[str, ...]] = {}
    items = []
    for value in (plan.graph.values[value] for value in plan.graph.params):
        p = plan.params.get(value.id)
        how = p and (id(p.stored), p.reduce_axes, p.zero, p.zero_axes, p.keep)
        key = kinds_of(plan).form((value.id, -1))[0], id(value.init), how
        if key not in said:
            said[key] = tuple(_parameter(plan, value, groups))
        items.append(Item(value.path, said[key]))
    return _declared("Parameter", items)


def state_lines(plan: Plan) -> str:
    """`states = [...]`, where there are any."""
    values = [plan.graph.values[value] for value in plan.graph.states]
    laid = [(value, plan.produced.get(value.id, identical(len(value.type.dims)))) for value in values]
    items = [Item(value.path, tuple(_stored(plan, value, layout))) for value, layout in laid]
    return _declared("State", items) if items else ""


def _declared(kind: str, items: Sequence[Item]) -> str:
    lines = "".join(f"{line}\n" for item in folded(items) for line in _lines(f"rt.{kind}", item, 1))
    return f"{kind.lower()}s = [\n{lines}]" if lines else f"{kind.lower()}s = []"


def _lines(kind: str, item: Item | Layers, depth: int) -> Iterator[str]:
    """One tensor, on one or two lines; or `*rt.each("blocks[0..6]", ...)` for each layer's."""
    space = "    " * depth
    if isinstance(item, Layers):
        yield f"{space}*rt.each({literal(item.path)},"
        for below in item.items:
            yield from _lines(kind, below, depth + 1)
        yield f"{space}),"
        return
    arguments = [literal(item.path), *item.said]
    flat = f"{space}{kind}({', '.join(arguments)}),"
    if len(flat) <= WIDTH:
        yield flat
        return
    yield f"{space}{kind}({', '.join(arguments[:3])},"
    yield f"{space}{' ' * len(kind)} {', '.join(arguments[3:])}),"


def _parameter(plan: Plan, value: GraphValue, groups: Groups) -> list[str]:
    planned = plan.params.get(value.id, ParamPlan(value.id, identical(len(value.type.dims)), ()))
    mesh, frozen = plan.meshes[planned.stored.mesh], plan.graph.frozen(value.id)
    reduced = mesh.ranked(planned.reduce_axes)
    groups.note([a for a in reduced if not planned.zero or a not in planned.zero_axes], planned.stored.mesh)
    groups.note(planned.zero_axes if planned.zero else (), planned.stored.mesh)
    arguments = _stored(plan, value, planned.stored)
    if low(value.type.dtype):
        arguments.append(f"use={literal(value.type.dtype)}")
    if planned.sparse:
        arguments.append("sparse=True")
    if frozen:
        arguments.append("frozen=True")
    if reduced:
        arguments.append(f"reduce={axes_text(reduced)}")
    if mesh.time and mesh.time.name not in planned.reduce_axes and not frozen:
        arguments.append("once=True")
    if planned.zero:
        arguments.append(f"zero=({planned.zero}, {axes_text(planned.zero_axes)})")
    if planned.keep:
        arguments.append("keep=True")
    return arguments


def _stored(plan: Plan, value: GraphValue, layout: Layout) -> list[str]:
    """The arguments that a parameter and a state share, without the path."""
    init = value.init
    arguments = [literal(value.type.shape)]
    if init is not None:
        arguments.append(literal((init.kind, *init.args) if init.args else init.kind))
    if value.kind is Kind.STATE and value.type.dtype != "f32":
        arguments.append(f"dtype={literal(value.type.dtype)}")
    arguments.extend(cut_arguments(value.type, layout, plan))
    if value.id in plan.memory_of:
        arguments.append(f"place={literal(plan.memory_of[value.id])}")
    return arguments


def axes_text(axes: Sequence[str]) -> str:
    """An axis, or a tuple of several."""
    return literal(axes[0] if len(axes) == 1 else tuple(axes))


def cut_arguments(type: TensorType, layout: Layout, plan: Plan) -> list[str]:
    """`cut={1: "mp"}`, and `sizes={1: (4, 4, 2)}` for dims that do not divide."""
    cut = ", ".join(f"{dim}: {axes_text(axes)}" for dim, axes in enumerate(layout.dims) if axes)
    arguments = [f"cut={{{cut}}}"] if cut else []
    mesh = plan.meshes[layout.mesh]
    uneven = dict(_uneven(type, layout, plan))
    if uneven:
        arguments.append(f"sizes={literal(uneven)}")
    if layout.mesh:
        arguments.append(f"mesh={mesh.name}")
    return arguments


def _uneven(type: TensorType, layout: Layout, plan: Plan) -> Iterable[tuple[int, tuple[int, ...]]]:
    for dim, (term, axes) in enumerate(zip(type.dims, layout.dims, strict=True)):
        sizes = uneven_sizes(term, plan.meshes[layout.mesh].degree(axes), plan.sizes)
        if sizes is not None:
            yield dim, sizes
