"""The memory that an operator needs while it computes, forward and backward: facts of torch's and
the runtime's functions on a device, that declarations name.

All in bytes of one rank. Kernels' own memory (cuBLAS's, a kernel's blocks) is not counted;
saved_activations.py has what stays until backward."""

from __future__ import annotations

from collections.abc import Callable

from shardlang.frozen.records import dataclass
from shardlang.ops.saved_activations import LocalOp, Shape, elements, size
from shardlang.types.dim import BYTES


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """forward: the most that is there at one time while the result is computed; backward: while the
    gradients of operands are. At least the results, with what is kept for backward, and the
    gradients themselves are. passes: operands whose gradient is the result's own memory. views:
    those whose gradient is a view of other memory; autograd adds nothing to it in place."""

    forward: int = 0
    backward: int = 0
    passes: tuple[int, ...] = ()
    views: tuple[int, ...] = ()


def plain(local: LocalOp) -> WorkingMemory:
    """Computes each result, and each gradient, in memory of its own and in nothing else."""
    return WorkingMemory()


def passing(local: LocalOp) -> WorkingMemory:
    """The gradient of the result is that of the first operand, seen with other dims, if any."""
    return WorkingMemory(passes=(0,), views=() if local.rule.operands == local.rule.results else (0,))


def passing_alike(local: LocalOp) -> WorkingMemory:
    """The gradient of the result is that of each operand of its dims and type."""
    result = local.results[0], local.result_types[0].dtype
    operands = zip(local.operands, local.operand_types, strict=True)
    return WorkingMemory(passes=tuple(at for at, (shape, type) in enumerate(operands) if (shape, type.dtype) == result))


def parts(local: LocalOp) -> WorkingMemory:
    """The gradient of each operand is a part of the result's."""
    each = tuple(range(len(local.operands)))
    return WorkingMemory(passes=each, views=each)


def products(local: LocalOp) -> WorkingMemory:
    """torch multiplies matrices: the gradient of one that is read as it is has memory of its own;
    those of others are seen transposed, or with their leading dims."""
    sides, result = local.rule.operands, local.rule.results[0]
    own = set[int]()
    if len(sides) == 2 and len(sides[1]) == 2 and result[:-1] == sides[0][:-1]:
        own |= {0} if len(result) == 2 else set()
        own |= {1} if sides[1] == (sides[0][-1], result[-1]) else set()
    return WorkingMemory(views=tuple(at for at in range(len(sides)) if at not in own))


def drawn(dims: int | None) -> Callable[[LocalOp], WorkingMemory]:
    """For each element, or each of the leading `dims`, half of a random word of 64 bits
    (runtime/functions/masks.py), beside what these are counted from or what is made of them.
    Backward makes the mask in the type of the gradient."""

    def work(local: LocalOp) -> WorkingMemory:
        if not local.attrs["p"]:
            return WorkingMemory(passes=(0,))
        here, whole = local.operands[0][:dims], local.operand_types[0].shape[:dims]
        mask = elements(here) * BYTES[local.operand_types[0].dtype]
        both = size(local.operands[0], local.operand_types[0].dtype) + mask
        return WorkingMemory(_words(here, whole), both)

    return work


def _words(here: Shape, whole: Shape) -> int:
    """Bytes while the words of a block are drawn: two elements of a row have one word. A part of a
    row may begin amid a word, and end so."""
    if not here or not elements(here):
        return (BYTES["i64"] + BYTES["bool"]) * elements(here)
    row = here[-1] // 2 + 1 if whole[-1] % here[-1] else -(-here[-1] // 2)
    sizes, wholes = (*here[:-1], row), (*whole[:-1], -(-whole[-1] // 2))
    words, cut = elements(sizes), [at for at in range(len(sizes)) if sizes[at] != wholes[at]]
    # Where a dim within others is cut, each is counted in a line of its own.
    before = elements(sizes[: cut[-1]]) if cut else 1
    lines = before + words // before if before > 1 else 0
    return BYTES["i64"] * words + max(BYTES["bool"] * elements(here), BYTES["i64"] * lines)
