"""The items of one function -> the same, with regions of what backward computes again.

A region is a run of one group of a plan; steps between that need nothing of it come before it. A
call that is the whole of a group needs no region: it is called by `rt.recompute` itself."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import field

from shardlang.emit.scene import FileContext, Item
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form
from shardlang.step.blocks.call import ROOT, BlockCall
from shardlang.step.saved_activations import owners


@dataclass
class Region:
    """Items of one group, in order; `path`: their layer. reads, gives: forms across its border."""

    group: int
    path: str
    items: list[Item] = field(default_factory=list)
    made: set[Form] = field(default_factory=set)
    reads: list[Form] = field(default_factory=list)
    gives: list[Form] = field(default_factory=list)


def arranged(
    scene: FileContext, call: BlockCall, items: Sequence[Item], ends: Sequence[Form]
) -> Sequence[Item | Region]:
    """The items of a call in an order that keeps what they read before them, those of regions
    together. ends: what is read after it, beside what the call gives."""
    groups = [_group(scene, item) for item in items]
    if not any(group is not None for group in groups) or _inside(scene, call):
        return items
    found: list[Item | Region] = []
    open_: Region | None = None
    for item, group in zip(items, groups, strict=True):
        if open_ is not None and group != open_.group and not open_.made.isdisjoint(scene.read(item)):
            open_ = None
        if group is None:
            found.insert(len(found) - (open_ is not None), item)
            continue
        if open_ is None or group != open_.group:
            open_ = Region(group, _layer(scene.plan, group))
            found.append(open_)
        open_.items.append(item)
        open_.made.update(scene.made(item))
    _cross(scene, call, found, {*call.gives, *ends})
    return found


def _group(scene: FileContext, item: Item) -> int | None:
    """The group of all of an item; None for a call that is its whole group, or is of several."""
    owners = scene.owners
    if owners is None or (isinstance(item, BlockCall) and item.region >= 0):
        return None
    if isinstance(item, Step):
        return owners.of(item)
    calls = [item] if isinstance(item, BlockCall) else item.calls
    groups = {owners.of(step) if call.region < 0 else None for call in calls for step in call.steps()}
    return groups.pop() if len(groups) == 1 else None


def _inside(scene: FileContext, call: BlockCall) -> bool:
    """Whether all of a function is of one group: then that is called by `rt.recompute`."""
    owners = scene.owners
    return call.call != ROOT and owners is not None and len({owners.of(step) for step in call.steps()}) == 1


def _cross(scene: FileContext, call: BlockCall, items: Sequence[Item | Region], after: Set[Form]) -> None:
    """The forms that each region reads from outside, and that later items read of it."""
    for item in reversed(items):
        if isinstance(item, Region):
            read = dict.fromkeys(at for each in item.items for at in scene.read(each))
            item.reads = [at for at in read if at not in item.made and not _leaf(scene, call, at)]
            made = dict.fromkeys(at for each in item.items for at in scene.made(each))
            item.gives = [at for at in made if at in after]
            after = after | read.keys()
        else:
            after = after | set(scene.read(item))


def _leaf(scene: FileContext, call: BlockCall, at: Form) -> bool:
    """Whether a form is there anyway: a number, or a parameter or state of this layer."""
    value = scene.plan.graph.values[at[0]]
    return at[1] < 0 and value.kind in (Kind.PARAM, Kind.STATE, Kind.CONSTANT) and at not in call.reads


def _layer(plan: Plan, group: int) -> str:
    """The path that all operators of a group have in common; that of the value, where it is one."""
    paths = [plan.graph.ops[op].path.partition(":")[0].split(".") for op in owners(plan).groups[group].call]
    common = paths[0][:-1] if len(paths) > 1 else paths[0]
    for path in paths:
        while common != path[: len(common)]:
            common = common[:-1]
    return ".".join(common) or ".".join(paths[0])
