"""A module and example tensors -> torch's program, by one torch.export whose sizes are symbols.

The module is in training mode."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from shardlang.errors import RunError
from shardlang.importing.authors.lines import place_of, whole_stacks
from shardlang.importing.authors.marks import Mark, Marks
from shardlang.importing.steps.nodes import Node, Traced
from shardlang.importing.steps.trace import ProgramReader
from shardlang.importing.steps.writes import name_of

# No tensor is as long.
UNBOUNDED = 1 << 31


@dataclasses.dataclass(frozen=True)
class TracedModule:
    """The program of a module by torch, for all sizes of inputs, with the marks of its calls."""

    module: nn.Module
    torchs: Any
    marks: Sequence[Mark]

    def read(self, inputs: Mapping[str, Tensor]) -> Traced:
        """The steps, where the inputs have these sizes. RunError SH601."""
        reader = ProgramReader(self.module, self.torchs, dict(inputs))
        traced = reader.read()
        steps = [dataclasses.replace(mark, node=reader.known.get(mark.node)) for mark in self.marks]
        traced.marks = [mark for mark in steps if isinstance(mark.node, Node)]
        return traced

    def most(self, symbol: Any) -> int:
        """Up to which size of a dim the module takes the way that was traced."""
        known = self.torchs.range_constraints
        upper = known[symbol].upper if symbol in known else None
        return int(upper) if upper is not None and upper.is_Integer and upper < UNBOUNDED else UNBOUNDED


def trace(module: nn.Module, inputs: Mapping[str, Tensor], place: str) -> TracedModule:
    """The program of `module(**inputs)`. RunError SH600 or SH602 if torch cannot trace it."""
    module.train()
    marks = Marks()
    sizes = {name: dict.fromkeys(range(each.dim()), torch.export.Dim.AUTO) for name, each in inputs.items()}
    try:
        free = dict(inspect.signature(module.forward).bind(**sizes).arguments)
        with quiet(), marks.of(module), whole_stacks():
            program = torch.export.export(module, (), dict(inputs), dynamic_shapes=free, strict=False)
    except Exception as error:
        raise _untraced(error, place) from error
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and free_unbacked_symbols(value):
            where, line = place_of(node.meta.get("stack_trace") or "")
            raise _by_values(place, f"how many numbers `{line or name_of(node.target)}` gives, {where}")
    return TracedModule(module, program, marks.read(program.graph_module))


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
