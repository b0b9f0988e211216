"""`data = digits(split = "train", batch = batch)` -> a data source with its fields as values of the graph.

Reading the data is the runtime's.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shardlang.check.constants import plain, show, whole
from shardlang.check.context import Frame
from shardlang.check.declared import Declared
from shardlang.check.model.arguments import argument_twice, missing_argument, unknown_argument
from shardlang.check.model.types import written_type
from shardlang.check.program import DataField, DataSource
from shardlang.check.values import UNKNOWN, DimValue, Tensor, describe
from shardlang.diagnostics.nearest import nearest
from shardlang.ops.declaration import Param
from shardlang.records import dataclass
from shardlang.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim, TensorType, Term


@dataclass(frozen=True)
class Known(Declared):
    """`fields` (where it declares its own): name -> (element type or "" for floating, sizes after the batch, exclusive
    bound). A size may be the name of an argument of kind "newdim", which is a dim or a number as `batch` is."""

    fields: Mapping[str, tuple[str, tuple[int | str, ...], int | None]] | None = None

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(param.name for param in self.params if param.kind == "newdim")


_PATH, _BATCH = Param("path", "str"), Param("batch", "newdim")
_SPLIT = Param("split", "str", "train")
_ORDER = (Param("shuffle", "bool", True), Param("seed", "int", None))
_LABELLED = {"label": ("i64", (), 10)}
# What all numbers of an element type stay below; a bound itself is below that of i64.
_LARGEST = {"i32": 2**31, "bool": 2}
# What ends a line, quotes a cell, or is a part of numbers.
_NO_DELIMITER = '\n\r\0".+-0123456789eE'
SOURCES = {
    "random": Known(
        "`batches` batches of fields as declared: numbers in [0, 1), and whole numbers from 0 to below the field's "
        "bound. Without `seed`, 0 draws them, and the run's seed orders them.",
        (Param("batches", "int", 1), *_ORDER),
    ),
    "digits": Known(
        "Real handwritten digits, shipped with the package: `image` 8 x 8 in 0..1, and `label`. Every fifth example is "
        "to test (360), the others to train (1,437).",
        (_BATCH, _SPLIT, *_ORDER), {"image": ("", (64,), None), **_LABELLED},
    ),
    "mnist": Known(
        "The four idx files of MNIST in a folder, each plain or with `.gz`: `image`, which is pixels / 255, less "
        "0.1307, over 0.3081, and `label`.",
        (_PATH, _BATCH, _SPLIT, *_ORDER), {"image": ("", (1, 28, 28), None), **_LABELLED},
    ),
    "numpy": Known(
        "The arrays of an `.npz` file, named as the fields are, with examples along the first dim. A field that is "
        "alone may be an `.npy`.",
        (_PATH, *_ORDER),
    ),
    "csv": Known(
        "A text file of numbers, an example a line, plain or packed with gzip. Without `header` the first line "
        "decides: it is a header unless it is all numbers.",
        (_PATH, Param("header", "bool", None), Param("delimiter", "str", ","), *_ORDER),
    ),
    "criteo": Known(
        "Click logs in the raw form. With `threshold` the categories seen so often are numbered; without, all are "
        "hashed to the rows of the table.",
        (_PATH, _BATCH, Param("threshold", "int", None), *_ORDER),
        {"ids": ("i64", (39,), None), "values": ("", (39,), None), "label": ("", (1,), None)},
    ),
    "parallel_text": Known(
        "A pair of sentences a line, with a tab between. `src` and `tgt` are the lengths; without "
        "vocabularies they are built from the file.",
        (_PATH, _BATCH, Param("src", "newdim"), Param("tgt", "newdim"), Param("source_vocab", "str", None),
         Param("target_vocab", "str", None), *_ORDER),
        {"source": ("i64", ("src",), None), "target": ("i64", ("tgt",), None), "label": ("i64", ("tgt",), None)},
    ),
    "tokens": Known(
        "Runs of `seq` tokens from all files that the pattern matches, and `label`, the token after each. `dtype` is "
        "of files without a header.",
        (_PATH, _BATCH, Param("seq", "newdim"), Param("dtype", "str", "u16"), *_ORDER),
        {"tokens": ("i64", ("seq",), None), "label": ("i64", ("seq",), None)},
    ),
}  # fmt: skip
_PYTHON = {"int": int, "str": str, "bool": bool}


def read_source(node: ast.Expr, frame: Frame) -> tuple[DataSource | None, Dim | None]:
    """The source and its batch dim; fields are bound in the frame. (None, None) after a report."""
    found = _read(node, frame)
    if found[0] is None:
        _silence(node, frame)
    return found


def _silence(node: ast.Expr, frame: Frame) -> None:
    """Fields of a source that is wrong are unknown, not missing: what uses them is no further mistake."""
    kind = node.callee.text if isinstance(node, ast.Call) and isinstance(node.callee, ast.Name) else ""
    known = SOURCES.get(kind)
    written = [f.name.text for f in node.fields] if isinstance(node, ast.Call) else []
    for name in (*written, *((known.fields or ()) if known else ("image", "label"))):
        frame.names.setdefault(name, UNKNOWN)
    frame.sightless = not written and (known is None or known.fields is None)


def _read(node: ast.Expr, frame: Frame) -> tuple[DataSource | None, Dim | None]:
    call, known = _known(node, frame)
    if call is None or known is None:
        return None, None
    kind = call.callee.text if isinstance(call.callee, ast.Name) else ""
    arguments = _arguments(call, kind, known, frame)
    if arguments is None:
        return None, None
    sizes = {name: arguments.pop(name) for name in known.dims}
    fields, batch = _fields(call, kind, known, sizes, frame)
    if batch is None or batch.size is None:
        return None, None
    return DataSource(kind, arguments, tuple(fields), batch.size, call.span), batch


def _known(node: ast.Expr, frame: Frame) -> tuple[ast.Call | None, Known | None]:
    sink = frame.context.sink
    if not isinstance(node, ast.Call) or not isinstance(node.callee, ast.Name):
        sink.report(
            "SH235",
            "`data` is a source with its arguments",
            node.span,
            "not a source",
            help='write `data = digits(split = "train", batch = batch)`, say',
        )
        return None, None
    name = node.callee.text
    if name in SOURCES:
        return node, SOURCES[name]
    close = nearest(name, SOURCES)
    sink.report(
        "SH235",
        f"there is no data source `{name}`",
        node.callee.span,
        "unknown source",
        help=f"did you mean `{close}`?" if close else f"the sources are {', '.join(SOURCES)}",
    )
    return None, None


def _arguments(call: ast.Call, kind: str, known: Known, frame: Frame) -> dict[str, Any] | None:
    """Evaluated arguments; positional ones are the source's path. None after a report."""
    kinds = {param.name: param.kind for param in known.params}
    given = _given(call, kind, kinds, frame)
    if given is None:
        return None
    missing = [param.name for param in known.params if param.required and param.name not in given]
    if missing:
        missing_argument(kind, missing[0], call.span, frame)
        return None
    found: dict[str, Any] = {}
    for name, node in given.items():
        value = frame.evaluate(node)
        if value is UNKNOWN:
            return None
        found[name] = value if name in known.dims else _typed(value, _PYTHON[kinds[name]], name, node.span, frame)
        if found[name] is UNKNOWN:
            return None
    return found if _in_range(found, given, kind, frame) else None


def _in_range(found: Mapping[str, Any], given: Mapping[str, ast.Expr], kind: str, frame: Frame) -> bool:
    """Whether counts are counts, and words are those that the source knows."""
    splits = ("train", "test")
    for name, fits, help in (
        ("batches", lambda v: v >= 1, "an epoch has at least 1 batch"),
        ("seed", lambda v: v >= 0, "a seed is a whole number from 0"),
        ("delimiter", lambda v: len(v) == 1 and v not in _NO_DELIMITER, 'one character, such as `delimiter = ";"`'),
        ("threshold", lambda v: v >= 1, "a category is kept when it is seen that often, 1 keeps all"),
        ("dtype", lambda v: v in ("u16", "u32"), 'tokens are kept in `"u16"` or `"u32"`'),
        ("split", lambda v: v in splits, f'`{kind}` is split in `"train"` and `"test"`'),
    ):
        if name in found and not fits(found[name]):
            fact = f"`{name}` of `{kind}` cannot be {show(found[name])}"
            frame.context.sink.report("SH237", fact, given[name].span, "out of range", help=help)
            return False
    return True


def _given(call: ast.Call, kind: str, allowed: Mapping[str, str], frame: Frame) -> dict[str, ast.Expr] | None:
    """Arguments by name; None after a report."""
    positions = ["path"] if "path" in allowed else []
    if len(call.args) > len(positions):
        many = f"{len(positions)} argument{'s' * (len(positions) != 1)}"
        frame.context.sink.report(
            "SH218", f"`{kind}` takes {many} without a name", call.args[-1].span, "one too many",
            help="name it: `batch = batch`",
        )  # fmt: skip
        return None
    given: dict[str, ast.Expr] = dict(zip(positions, call.args, strict=False))
    for keyword in call.keywords:
        name = keyword.name.text
        if name in given:
            argument_twice(kind, keyword.name, given[name].span, frame)
            return None
        if name not in allowed:
            unknown_argument(kind, keyword.name, set(allowed), frame)
            return None
        given[name] = keyword.value
    return given


def _typed(value: Any, kind: type, name: str, span: Span, frame: Frame) -> Any:
    value = plain(value)
    if isinstance(value, Fraction) and kind is int:
        return whole(value, span, frame.context.sink, f"`{name}`")
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    wanted = {int: "a whole number", str: "a text", bool: "true or false"}[kind]
    frame.context.sink.report(
        "SH210", f"`{name}` must be {wanted}, and this is {describe(value)}", span, describe(value)
    )
    return UNKNOWN


def _fields(
    call: ast.Call, kind: str, known: Known, sizes: Mapping[str, Any], frame: Frame
) -> tuple[list[DataField], Dim | None]:
    if known.fields is None:
        return _written_fields(call, kind, frame)
    if call.fields:
        frame.context.sink.report(
            "SH235",
            f"`{kind}` declares its fields itself",
            call.fields[0].span,
            "not here",
            help=f"its fields are {', '.join(f'`{n}`' for n in known.fields)}",
        )
        return [], None
    terms = {name: _size_term(name, value, call.span, frame) for name, value in sizes.items()}
    batch = terms.get("batch")
    if batch is None or None in terms.values():
        return [], None
    made = []
    for name, (dtype, shape, bound) in known.fields.items():
        dims: list[Term] = [batch]
        for size in shape:
            own = terms[size] if isinstance(size, str) else _own_term(name, size, call.span)
            dims.append(own if own is not None else ())
        made.append(_add(name, TensorType(dtype or frame.context.dtype, tuple(dims)), bound, call.span, None, frame))
    return made, batch[0]


def _own_term(field: str, size: int, span: Span) -> Term:
    """A dim of a source's own, which unifies once with a dim of its size."""
    return () if size == 1 else (Dim(f"train.{field}.{size}", size, span, True),)


def _size_term(name: str, size: Any, span: Span, frame: Frame) -> Term | None:
    """A dim that is given to a source, or one made from a number."""
    if isinstance(size, DimValue):
        return size.term
    length = whole(size, span, frame.context.sink, f"`{name}`")
    if length is UNKNOWN:
        return None
    return (Dim(name, length, span, True),)


def _written_fields(call: ast.Call, kind: str, frame: Frame) -> tuple[list[DataField], Dim | None]:
    sink = frame.context.sink
    if not call.fields:
        sink.report(
            "SH235",
            f"`{kind}` needs its fields",
            call.span,
            "no field is declared",
            help=f"declare them in the call: `{kind}(x: [batch, d], label: i64[batch] < 10)`",
        )
        return [], None
    made: list[DataField] = []
    first: Dim | None = None
    for node in call.fields:
        type = written_type(node.type, frame, f"train.{node.name.text}")
        if type is None:
            return [], None
        if not type.dims or len(type.dims[0]) != 1:
            sink.report(
                "SH235", f"field `{node.name.text}` needs the batch as its first dim", node.type.span, str(type)
            )
            return [], None
        dim = type.dims[0][0]
        if first is not None and dim is not first:
            sink.report(
                "SH235",
                f"fields of one source share their first dim: `{first.name}` and `{dim.name}` differ",
                node.type.span,
                str(type),
                help=f"begin it with `{first.name}`",
            )
            return [], None
        first = dim
        made.append(_add(node.name.text, type, _bound(node, type, kind, frame), node.span, node, frame))
    return made, first


def _bound(node: ast.Field, type: TensorType, kind: str, frame: Frame) -> int | None:
    if node.bound is None:
        if kind == "random" and not type.floating and type.dtype != "bool":
            _unbounded(node, frame)
        return None
    if type.floating:
        frame.context.sink.report(
            "SH235",
            f"`{node.name.text}` is {type.dtype}, and a bound is for whole numbers",
            node.bound.span,
            "here",
            help=f"give it an element type: `{node.name.text}: i64[...]`",
        )
        return None
    value = whole(frame.evaluate(node.bound), node.bound.span, frame.context.sink, "a bound")
    if value is not UNKNOWN and value < 1:
        help = "the numbers go from 0 to one less than the bound"
        frame.context.sink.report("SH213", f"a bound is at least 1, and this is {value}", node.bound.span, help=help)
    if value is not UNKNOWN and value > _LARGEST.get(type.dtype, value):
        fact = f"the numbers of {type.dtype} stay below {_LARGEST[type.dtype]}, and this bound is {value}"
        frame.context.sink.report("SH237", fact, node.bound.span, help="a smaller bound, or i64")
    return None if value is UNKNOWN else int(value)


def _unbounded(node: ast.Field, frame: Frame) -> None:
    frame.context.sink.report(
        "SH235",
        f"`{node.name.text}` holds random whole numbers, and nothing says below what",
        node.span,
        "no bound",
        help=f"write `{node.name.text}: {node.type.span.text} < 10`, say",
    )


def _add(name: str, type: TensorType, bound: int | None, span: Span, node: object | None, frame: Frame) -> DataField:
    """A field as a value of the graph, bound to its name."""
    id = frame.context.build.field(f"train.{name}", name, type, bound, span)
    frame.bind(name, Tensor(id, type, name), span, node)
    if node is not None:
        frame.context.candidates.setdefault(id_of(node), ("field", name, span))
    return DataField(name, id)


def id_of(node: object) -> int:
    """What `Context.used` knows a declaration by."""
    return id(node)
