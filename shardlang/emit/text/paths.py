"""Values' addresses -> the paths they are named by: what a layer returns is called as its caller
named it.

`down.return`, assigned to `scores`, is `scores`; `up.return`, piped on, is `up_out`;
`train.metric:accuracy` is `accuracy`.
Making identifiers of paths is names.py's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardlang.frozen.records import remembered
from shardlang.graph.graph import Graph, Kind
from shardlang.step.blocks.call import is_below, relative, without_call, without_stage

# `down.return:1#2:bf16`: what the second step of a statement computes in the third call of a layer,
# cast to bf16.
_NUMBERED = re.compile(r"(?P<statement>[^#]*?)(?P<step>:\d+)?(?P<call>#\d+)?(?P<converted>(:b?f\d+)*)")
_RETURN = re.compile(r"(?:(?P<layer>[^.]+)\.|^)return$")


def readable_path(graph: Graph, value: int) -> str:
    """The path of a value, without the words of the compiler."""
    return readable(without_stage(graph.values[value].path), _results(graph))


@remembered
def _results(graph: Graph) -> Mapping[str, str]:
    """Path of what a layer returns -> the path of the name that its caller gives it."""
    paths = given_paths(graph).items()
    return {graph.values[id].path: path for id, given in paths for path, alone in given if alone}


@remembered
def given_paths(graph: Graph) -> Mapping[int, list[tuple[str, bool]]]:
    """Values that a layer returns and its caller named -> the paths of these names, the innermost
    first, and whether a path is of this value alone: of a layer that is called twice, it is of two.
    """
    found: dict[int, list[tuple[str, bool]]] = {}
    for address, ids in graph.addresses.items():
        for id in () if address.endswith("return") and _RETURN.search(address) else ids:
            if graph.values[id].kind is Kind.RESULT:
                found.setdefault(id, []).append((address, len(ids) == 1))
    for paths in found.values():
        paths.sort(key=lambda path: (path[0].count("."), path[0]), reverse=True)
    return found


def readable_within(graph: Graph, value: int, layer: str) -> str:
    """The path of a value of a layer from there, named as the layer's own model names it, whichever
    of the layer's calls it is of."""
    given = [path for path, _ in given_paths(graph).get(value, ()) if is_below(path, layer)]
    if given:
        return relative(given[-1], layer)
    path = without_call(without_stage(graph.values[value].path))
    while path.endswith(".return"):  # up to the outermost layer that returns it
        outer = path.removesuffix(".return").rpartition(".")[0]
        if not is_below(outer, layer) or value not in graph.addresses.get(f"{outer}.return", ()):
            break
        path = f"{outer}.return"
    return readable(relative(path, layer), {})


def readable(path: str, results: Mapping[str, str]) -> str:
    """A path without the compiler's words. results: results of layers -> the path they return."""
    if ":" not in path and "#" not in path and not path.endswith("return"):
        return path.removeprefix("train.")
    match = _NUMBERED.fullmatch(path.replace("metric:", ""))
    if match is None:
        return path
    statement, step, call = match["statement"], match["step"] or "", match["call"] or ""
    if _RETURN.search(statement):
        if step and statement + step + call in results:  # the second result of a layer, `up.return:1`
            statement, step, call = results[statement + step + call], "", ""
        else:
            named = results.get(statement + call)
            statement, call = (named, "") if named else (_RETURN.sub(_out, statement), call)
    return f"{statement}{step}{call}{match['converted']}".removeprefix("train.")


def _out(match: re.Match[str]) -> str:
    """`up.return` -> `up_out`; that of a layer `out` is no `out_out`."""
    layer = match["layer"] or "out"
    return layer if layer.rpartition("_")[2] == "out" else f"{layer}_out"


def unnumbered(paths: Mapping[int, str]) -> dict[int, str]:
    """The paths by id; the last step of a statement has no number where nothing else is called as
    the statement: `h:2` is `h`, and its cast `h:2:bf16` is `h:bf16`."""
    numbered, last, taken = dict[int, re.Match[str]](), dict[str, int](), set[str]()
    for id, path in paths.items():
        match = _NUMBERED.fullmatch(path)
        if match is None or not match["step"]:
            taken.add(path if match is None else _whole(match))
            continue
        numbered[id] = match
        last[_whole(match)] = max(last.get(_whole(match), 0), int(match["step"][1:]))
    plain = {
        id: f"{_whole(match)}{match['converted']}" for id, match in numbered.items()
        if _whole(match) not in taken and int(match["step"][1:]) == last[_whole(match)]
    }  # fmt: skip
    return {**paths, **plain}


def _whole(numbered: re.Match[str]) -> str:
    """The path of a statement's value, in one call of its layer."""
    return numbered["statement"] + (numbered["call"] or "")
