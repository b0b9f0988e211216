"""The element types of the language. safetensors has the same names, in capitals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DtypeFacts(NamedTuple):
    """bytes: of an element. torch: its name there. bits: numpy's type of the same bits, which for
    bf16, that numpy lacks, is a whole number. order: the result of an operator has the type of the
    greatest; of two that are alike f32. floating: it has gradients."""

    bytes: int
    torch: str
    bits: str
    order: int
    floating: bool = False


DTYPES: Mapping[str, DtypeFacts] = {
    "f64": DtypeFacts(8, "float64", "<f8", 5, floating=True),
    "f32": DtypeFacts(4, "float32", "<f4", 4, floating=True),
    "f16": DtypeFacts(2, "float16", "<f2", 3, floating=True),
    "bf16": DtypeFacts(2, "bfloat16", "<u2", 3, floating=True),
    "i64": DtypeFacts(8, "int64", "<i8", 2),
    "i32": DtypeFacts(4, "int32", "<i4", 1),
    "bool": DtypeFacts(1, "bool", "?", 0),
}
