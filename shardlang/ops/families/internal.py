"""Operators that the planner adds and no program calls: a value handed on to the next stage, or
copied between the memories of host and device.

`kept_count` is beside the losses that it counts for, in losses.py."""

from __future__ import annotations

from shardlang.ops.code import RT, around
from shardlang.ops.declaration import CallSite, Inference, Param, calls, declare
from shardlang.ops.factors import unary_rule
from shardlang.ops.rule import FactorRule
from shardlang.ops.saved_activations import nothing
from shardlang.ops.working_memory import passing
from shardlang.types.dim import TensorType

TRANSFER = "transfer"
TO_DEVICE, TO_HOST = "to_device", "to_host"
# Those that send a value over a link, and compute nothing.
SENT = frozenset({TRANSFER, TO_DEVICE, TO_HOST})


def transfer_rule(type: TensorType) -> FactorRule:
    """The identity: it arrives as it is sent, and what is pending may stay pending."""
    return unary_rule(type, through=True)


def _infer(site: CallSite) -> Inference:
    return Inference((site.operands[0],), transfer_rule(site.operands[0]))


_X = (Param("x", "tensor"),)
declare(TRANSFER, _X, _infer, lambda site: around("", site.operands[0]), "A value in the next stage.",
        internal=True, saved=nothing, work=passing)  # fmt: skip
declare(TO_DEVICE, _X, _infer, calls(RT, TO_DEVICE), "A value of the host, on the device.",
        internal=True, saved=nothing)  # fmt: skip
declare(TO_HOST, _X, _infer, calls(RT, TO_HOST), "A value of the device, on the host.",
        internal=True, saved=nothing)  # fmt: skip
