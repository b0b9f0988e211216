"""`data = digits(split = "train", batch = batch)` -> a data source with its fields as values of the
graph.

Reading the data is the runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.constants import whole
from shardlang.check.context import Frame, Reported, attempted
from shardlang.check.declared import DeclaredKind, called
from shardlang.check.files.own import OF_EVERY_SOURCE, visible
from shardlang.check.model.arguments import call_of_one, declared_arguments
from shardlang.check.model.types import written_type
from shardlang.check.own import OwnDecl
from shardlang.check.program import DataSource
from shardlang.check.values import UNKNOWN, CsvText, CsvWords, DimValue, Numbering, Tensor
from shardlang.facts.dtypes import INTEGERS
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import Param
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import BYTES, Dim, TensorType, Term, term_size


@dataclass(frozen=True)
class DataSourceKind(DeclaredKind):
    """`fields` (where it declares its own): name -> (element type or "" for floating, sizes
    after the batch, exclusive bound). A size may be the name of an argument of kind "newdim",
    which is a dim or a number as `batch` is, and a bound that of such an argument or of an
    `int`. counted: the field of which a run counts the elements, in place of examples. batch:
    the name of the first dim. own: the declaration of a source that is the user's."""

    fields: Mapping[str, tuple[str, tuple[int | str, ...], int | str | None]] | None = None
    counted: str = ""
    batch: str = "batch"
    own: OwnDecl | None = None

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(param.name for param in self.params if param.kind == "newdim")


# Of each field that reads words or text, the name of its vocabulary, and how it becomes numbers.
FieldWords = dict[str, tuple[str, Numbering]]
_PATH, _BATCH = Param("path", "str"), Param("batch", "newdim")
_SPLIT = Param("split", "str", "train")
_ORDER = (Param("shuffle", "bool", True), Param("seed", "int", None))
_LABELLED = {"label": ("i64", (), 10)}
# What all numbers of an element type stay below; a bound itself is below that of i64.
_LARGEST = {"bool": 2, **{name: 2 ** (8 * BYTES[name] - 1) for name in INTEGERS if name != "i64"}}
SOURCES = {
    "random": DataSourceKind(
        "`batches` batches of fields as declared: numbers in [0, 1), and whole numbers from 0 to below the field's "
        "bound. Without `seed` they are drawn with seed 0 and ordered by the run's.",
        (Param("batches", "int", 1), *_ORDER),
    ),
    "digits": DataSourceKind(
        "Real handwritten digits, shipped with the package: `image` 8 x 8 in 0..1, and `label`. Every fifth example is "
        "for tests (360), the others for training (1,437).",
        (_BATCH, _SPLIT, *_ORDER), {"image": ("", (64,), None), **_LABELLED},
    ),
    "mnist": DataSourceKind(
        "The four idx files of MNIST in a folder, each plain or with `.gz`: `image`, which is pixels / 255, less "
        "0.1307, over 0.3081, and `label`.",
        (_PATH, _BATCH, _SPLIT, *_ORDER), {"image": ("", (1, 28, 28), None), **_LABELLED},
    ),
    "numpy": DataSourceKind(
        "The arrays of an `.npz` file, named as the fields are, with examples along the first dim. A single "
        "field may be an `.npy`.",
        (_PATH, *_ORDER),
    ),
    "csv": DataSourceKind(
        "A text file, an example a line, plain or packed with gzip. A column holds numbers, or words if `categories` "
        "or `hashed` bounds its field, or text if `words`, `tokenizer` or `bytes` does. Without `header` the first "
        "line decides: it is a header unless it is all numbers, words and text aside.",
        (_PATH, Param("header", "bool", None), Param("delimiter", "str", ","), *_ORDER),
    ),
    "criteo": DataSourceKind(
        "Raw click logs. With `threshold` the categories that occur as often are numbered; without it all are "
        "hashed to the rows of the table.",
        (_PATH, _BATCH, Param("threshold", "int", None), *_ORDER),
        {"ids": ("i64", (39,), None), "values": ("", (39,), None), "label": ("", (1,), None)},
    ),
    "parallel_text": DataSourceKind(
        "A pair of sentences a line, with a tab between. `src` and `tgt` are the lengths; without "
        "vocabularies the run builds them from the file.",
        (_PATH, _BATCH, Param("src", "newdim"), Param("tgt", "newdim"), Param("source_vocab", "str", None),
         Param("target_vocab", "str", None), *_ORDER),
        {"source": ("i64", ("src",), None), "target": ("i64", ("tgt",), None), "label": ("i64", ("tgt",), None)},
    ),
    "tokens": DataSourceKind(
        "Runs of `seq` tokens from all files that the pattern matches, and `label`, the token after each. `dtype` is "
        "for files without a header.",
        (_PATH, _BATCH, Param("seq", "newdim"), Param("dtype", "str", "u16"), *_ORDER),
        {"tokens": ("i64", ("seq",), None), "label": ("i64", ("seq",), None)}, "tokens",
    ),
}  # fmt: skip


def sources(frame: Frame) -> Mapping[str, DataSourceKind]:
    """The sources that a program may call: the library's, and those that its files declare."""
    return {**SOURCES, **{name: _declared(decl) for name, decl in visible(frame.file, "source").items()}}


def _declared(decl: OwnDecl) -> DataSourceKind:
    dims = tuple(Param(name, "newdim") for name in decl.dims)
    return DataSourceKind("", (*decl.settings, *dims, *OF_EVERY_SOURCE), decl.fields, batch=decl.batch, own=decl)


def read_source(node: ast.Expr, frame: Frame) -> tuple[DataSource | None, Dim | None]:
    """The source and its batch dim; fields are bound in the frame. (None, None) after a report."""
    found = attempted(_read, node, frame)
    if found is None:
        silence(node, frame)
    return found or (None, None)


def silence(node: ast.Expr, frame: Frame) -> None:
    """Fields of a wrong source are unknown, not missing: their use is no further mistake."""
    known = sources(frame).get(called(node))
    written = [f.name.text for f in node.fields] if isinstance(node, ast.Call) else []
    for name in (*written, *((known.fields or ()) if known else ("image", "label"))):
        frame.names.setdefault(name, UNKNOWN)
    frame.sightless = not written and (known is None or known.fields is None)


def _read(node: ast.Expr, frame: Frame) -> tuple[DataSource, Dim]:
    example = 'data = digits(split = "train", batch = batch)'
    if frame.file.find(called(node)) is UNKNOWN:
        raise Reported  # its declaration
    there = sources(frame)
    call, kind = call_of_one(node, there, "data source", "SH235", example, frame), called(node)
    known = there[kind]
    free = {p.name for p in known.own.settings} if known.own is not None else set()
    arguments = declared_arguments(kind, known.params, call, frame, _unnamed(known), free=free)
    sizes = {name: arguments.pop(name) for name in known.dims}
    words: FieldWords = {}
    fields, batch = _fields(call, kind, known, sizes, arguments, words, frame)
    if batch.size is None:
        raise Reported
    if known.own is None:
        return DataSource(kind, arguments, fields, batch.size, words=words), batch
    settings = _settings(known.own, {**arguments, **sizes}, call, frame)
    given = {p.name: arguments[p.name] for p in OF_EVERY_SOURCE if p.name in arguments}
    return DataSource(kind, given, fields, batch.size, known.own, settings), batch


def _unnamed(known: DataSourceKind) -> int:
    """How many arguments may stand without a name."""
    return int(known.params[0].kind == "str") if known.own is not None else int(_PATH in known.params)


def _settings(decl: OwnDecl, given: Mapping[str, Any], call: ast.Call, frame: Frame) -> dict[str, Any]:
    """The settings that the function of a declared source gets: a dim as its size."""
    sizes = {}
    for name in (p.name for p in decl.settings if p.kind == "newdim"):
        term = _size_term(name, given[name], call.span, frame)
        sizes[name] = None if term is None else term_size(term)
    known = {**decl.given(given), **sizes}
    return {param.name: known[param.name] for param in decl.settings}


def _fields(
    call: ast.Call, kind: str, known: DataSourceKind, sizes: Mapping[str, Any], arguments: Mapping[str, Any],
    words: FieldWords, frame: Frame,
) -> tuple[tuple[str, ...], Dim]:  # fmt: skip
    """The names of a source's fields, which become values of the graph, and its batch dim. sizes:
    its arguments that are dims; arguments: the others. words: takes what fields have of them."""
    if known.fields is None:
        return _written_fields(call, kind, words, frame)
    if call.fields:
        help = f"its fields are {', '.join(f'`{n}`' for n in known.fields)}"
        frame.refuse("SH235", f"`{kind}` declares its fields itself", call.fields[0].span, "not here", help=help)
    terms = {name: _size_term(name, value, call.span, frame) for name, value in sizes.items()}
    batch = terms.get(known.batch)
    if batch is None or None in terms.values():
        raise Reported
    for name, (dtype, shape, bound) in known.fields.items():
        dims: list[Term] = [batch]
        for size in shape:
            if isinstance(size, str):
                dims.append(terms[size] or ())
            else:  # a dim of the source's own, which unifies once with a dim of its size
                dims.append(() if size == 1 else (Dim(f"train.{name}.{size}", size, call.span, True),))
        type = TensorType(dtype or frame.context.dtype, tuple(dims))
        if isinstance(bound, str):
            given = term_size(terms[bound] or ()) if bound in terms else arguments[bound]
            bound = _fitting(UNKNOWN if given is None else given, type, call.span, frame)
        _add(name, type, bound, call.span, None, frame)
    return tuple(known.fields), batch[0]


def _size_term(name: str, size: Any, span: Span, frame: Frame) -> Term | None:
    """A dim that is given to a source, or one made from a number."""
    if isinstance(size, DimValue):
        return size.term
    length = whole(size, span, frame.context.sink, f"`{name}`")
    return None if length is UNKNOWN else (Dim(name, length, span, True),)


def _written_fields(call: ast.Call, kind: str, words: FieldWords, frame: Frame) -> tuple[tuple[str, ...], Dim]:
    if not call.fields:
        help = f"declare them in the call: `{kind}(x: [batch, d], label: i64[batch] < 10)`"
        frame.refuse("SH235", f"`{kind}` needs its fields", call.span, "no field is declared", help=help)
    first: Dim | None = None
    for node in call.fields:
        type = written_type(node.type, frame, f"train.{node.name.text}")
        if type is None:
            raise Reported
        if not type.dims or len(type.dims[0]) != 1:
            fact = f"field `{node.name.text}` needs the batch as its first dim"
            frame.refuse("SH235", fact, node.type.span, str(type))
        dim = type.dims[0][0]
        if first is not None and dim is not first:
            fact = f"fields of one source share their first dim: `{first.name}` and `{dim.name}` differ"
            frame.refuse("SH235", fact, node.type.span, str(type), help=f"begin it with `{first.name}`")
        first = dim
        _add(node.name.text, type, _bound(node, type, kind, words, frame), node.span, node, frame)
    assert first is not None
    return tuple(field.name.text for field in call.fields), first


def _bound(node: ast.Field, type: TensorType, kind: str, words: FieldWords, frame: Frame) -> int | None:
    """The declared bound of a field, if any. words: takes those that it stands for."""
    name = node.name.text
    if node.bound is None:
        if kind == "random" and not type.floating and type.dtype != "bool":
            fact = f"`{name}` holds random whole numbers, and nothing says below what"
            help = f"write `{name}: {node.type.span.text} < 10`, say"
            frame.wrong("SH235", fact, node.span, "no bound", help=help)
        return None
    if type.floating:
        fact = f"`{name}` is {type.dtype}, and a bound is for whole numbers"
        frame.wrong("SH235", fact, node.bound.span, "here", help=f"give it an element type: `{name}: i64[...]`")
        return None
    value = frame.evaluate(node.bound)
    found = _numbering(value, frame)
    if isinstance(found, CsvText) and kind == "csv" and len(type.dims) != 2:
        fact = f"`{name}` reads text, so its dims are two, the batch and the length of a text; {type} has other"
        help = f"texts are cut and filled up to a dim: `{name}: {type.dtype}[{type.dims[0][0].name}, seq]`"
        frame.wrong("SH235", fact, node.type.span, str(type), help=help)
        return None
    if found is not None and kind == "csv":
        words[name] = value.term[0].name if isinstance(value, DimValue) else f"train.{name}", found
    elif isinstance(value, Numbering):
        read, help = "words" if isinstance(value, CsvWords) else "text", "give it the number of them, or a dim"
        fact = f"`{kind}` reads no {read}, and `{name}` is bounded by some"
        frame.wrong("SH235", fact, node.bound.span, f"{read} of `csv`", help=help)
        return None
    return _fitting(found.count if found is not None else value, type, node.bound.span, frame)


def _fitting(bound: Any, type: TensorType, span: Span, frame: Frame) -> int | None:
    """The bound, which reports where the numbers of its type have no such one."""
    value = whole(bound, span, frame.context.sink, "a bound")
    if value is not UNKNOWN and value < 1:
        help = "the numbers go from 0 to one less than the bound"
        frame.wrong("SH213", f"a bound is at least 1, and this is {value}", span, help=help)
    if value is not UNKNOWN and value > _LARGEST.get(type.dtype, value):
        fact = f"the numbers of {type.dtype} stay below {_LARGEST[type.dtype]}, and this bound is {value}"
        frame.wrong("SH237", fact, span, help="a smaller bound, or i64")
    return None if value is UNKNOWN else int(value)


def _numbering(bound: Any, frame: Frame) -> Numbering | None:
    """The words or texts that a bound stands for: its own, or those of a dim."""
    if isinstance(bound, DimValue) and len(bound.term) == 1:
        return frame.context.words.get(bound.term[0])
    return bound if isinstance(bound, Numbering) else None


def require_same_words(data: DataSource, tested: DataSource, span: Span, frame: Frame) -> bool:
    """Whether `eval` reads words as `data` does; a report where it does not."""
    for name, (vocabulary, words) in tested.words.items() if data.kind != "csv" else ():
        if words.counted:
            fact = f"the vocabulary of `{name}` is made from the training data, and `data` is `{data.kind}`"
            help = f'list the words of `{vocabulary}`: `categories("red", "green")`'
            if isinstance(words, CsvText):
                help = f'take the tokens of a file for `{vocabulary}`: `tokenizer("tokenizer.json", 30522)`'
            frame.wrong("SH235", fact, span, "no words to train on", help=help)
            return False
    if data.kind == tested.kind == "csv":
        for name in dict.fromkeys([*data.words, *tested.words]):
            if data.words.get(name) != tested.words.get(name):
                fact = f"`eval` numbers the words of `{name}` in another way than `data`"
                example = (
                    "vocab = words"
                    if isinstance(data.words.get(name, ("", None))[1], CsvText)
                    else "words = categories"
                )
                help = f"bound `{name}` by one dim in both: `dim {example}(most = 1000)`, say"
                frame.wrong("SH235", fact, span, "other numbers", help=help)
                return False
    return True


def _add(name: str, type: TensorType, bound: int | None, span: Span, node: object | None, frame: Frame) -> None:
    """Adds a field as a value of the graph, bound to its name."""
    value = frame.context.build.field(f"train.{name}", name, type, bound, span)
    frame.bind(name, Tensor(value, type, name), span, node)
    if node is not None:
        frame.context.candidates.setdefault(id(node), ("field", name, span))
