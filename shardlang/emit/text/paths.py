"""Values' addresses -> the paths they are named by: what a layer returns is called as its caller named it.

`down.return`, assigned to `scores`, is `scores`; `up.return`, piped on, is `up_out`; `train.metric:accuracy` is
`accuracy`.
Making identifiers of paths is names.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardlang.graph.graph import Graph, Kind
from shardlang.records import remembered

# `down.return:1#2`: what the second step of a statement computes in the third call of a layer.
_NUMBERED = re.compile(r"(?P<statement>[^#]*?)(?P<step>:\d+)?(?P<call>#\d+)?")
# `h@2`: what stands for a value in another stage.
_STAGE = re.compile(r"@\d+$")
_RETURN = re.compile(r"(?:(?P<layer>[^.]+)\.|^)return$")


@remembered
def readable_paths(graph: Graph) -> dict[int, str]:
    """Value id -> its path, without the words of the compiler."""
    given = _given_names(graph)
    results = {v.path: given[v.id] for v in graph.values if v.id in given}
    return {value.id: _readable(_STAGE.sub("", value.path), results) for value in graph.values}


def _given_names(graph: Graph) -> Mapping[int, str]:
    """Values that a layer returns and its caller named -> that name's path; the outermost of several."""
    found: dict[int, str] = {}
    for address, ids in sorted(graph.addresses.items(), key=lambda item: (item[0].count("."), item[0])):
        if len(ids) == 1 and not _RETURN.search(address):
            found.setdefault(ids[0], address)
    return {id: path for id, path in found.items() if graph.values[id].kind is Kind.RESULT}


def _readable(path: str, results: Mapping[str, str]) -> str:
    match = _NUMBERED.fullmatch(path.replace("metric:", ""))
    if match is None:
        return path
    statement, step, call = match["statement"], match["step"] or "", match["call"] or ""
    if _RETURN.search(statement):
        named = results.get(statement + call)
        statement, call = (named, "") if named else (_RETURN.sub(_out, statement), call)
    return f"{statement}{step}{call}".removeprefix("train.")


def _out(match: re.Match[str]) -> str:
    return f"{match['layer']}_out" if match["layer"] else "out"
