"""Operators that the planner adds and no program calls: a value handed on to the next stage, or
copied between the memories of host and device.

`kept_count` is beside the losses that it counts for, in losses.py."""

from __future__ import annotations

from shardlang.ops.code import RT, Code, around
from shardlang.ops.declaration import CallSite, Inference, Operator, Param, register
from shardlang.ops.factors import unary_rule
from shardlang.ops.rule import FactorRule
from shardlang.ops.saved_activations import nothing
from shardlang.ops.site import OpSite
from shardlang.types.dim import TensorType

TRANSFER = "transfer"
TO_DEVICE, TO_HOST = "to_device", "to_host"
# Those that send a value over a link, and compute nothing.
SENT = frozenset({TRANSFER, TO_DEVICE, TO_HOST})


def transfer_rule(type: TensorType) -> FactorRule:
    """The identity: it arrives as it is sent, and what is pending may stay pending."""
    return unary_rule(type, through=True)


def _infer(site: CallSite) -> Inference | None:
    return Inference((site.operands[0],), transfer_rule(site.operands[0]))


def _emit(site: OpSite) -> Code:
    return around("", site.operands[0])


register(
    Operator(TRANSFER, (Param("x", "tensor"),), _infer, _emit, "A value in the next stage.", internal=True,
             saved=nothing)
)  # fmt: skip


def _emit_to_device(site: OpSite) -> Code:
    return RT(TO_DEVICE, site.operands[0])


def _emit_to_host(site: OpSite) -> Code:
    return RT(TO_HOST, site.operands[0])


register(
    Operator(TO_DEVICE, (Param("x", "tensor"),), _infer, _emit_to_device, "A value of the host, on the device.",
             internal=True, saved=nothing)
)  # fmt: skip
register(
    Operator(TO_HOST, (Param("x", "tensor"),), _infer, _emit_to_host, "A value of the device, on the host.",
             internal=True, saved=nothing)
)  # fmt: skip
