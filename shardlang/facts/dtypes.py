"""The element types of the language. safetensors has the same names, in capitals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DtypeFacts(NamedTuple):
    """bytes: of an element. torch: its name there. bits: numpy's type of the same bits, which for
    bf16, that numpy lacks, is a whole number. floating: it has gradients."""

    bytes: int
    torch: str
    bits: str
    floating: bool = False


DTYPES: Mapping[str, DtypeFacts] = {
    "f64": DtypeFacts(8, "float64", "<f8", floating=True),
    "f32": DtypeFacts(4, "float32", "<f4", floating=True),
    "f16": DtypeFacts(2, "float16", "<f2", floating=True),
    "bf16": DtypeFacts(2, "bfloat16", "<u2", floating=True),
    "i64": DtypeFacts(8, "int64", "<i8"),
    "i32": DtypeFacts(4, "int32", "<i4"),
    "bool": DtypeFacts(1, "bool", "?"),
}
INTEGERS = tuple(name for name, facts in DTYPES.items() if not facts.floating and name != "bool")
