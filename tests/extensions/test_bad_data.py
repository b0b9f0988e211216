"""Objects that are no data source, or give what is no example: each is told with file, example and field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardlang.errors import RunError
from shardlang.extensions.loaded import OwnFunction
from shardlang.extensions.locks import digest
from shardlang.runtime.data.loader import load
from shardlang.runtime.data.own import OwnDataset
from shardlang.runtime.program import BatchSource, SourceField

FIELDS = [SourceField("x", "f32", (4, 3)), SourceField("label", "i64", (4,), bound=10)]
GOOD = '{"x": [0, 1, 2], "label": 1}'


def by_number(item: str = GOOD, length: str = "8") -> str:
    return f"""
import numpy as np
import torch

class Mine:
    def __len__(self):
        return {length}

    def __getitem__(self, i):
        return {item}
"""


def several(rows: str) -> str:
    return f"""
class Mine:
    def __len__(self):
        return 8

    def __getitems__(self, numbers):
        return {rows}
"""


def stream(body: str, length: str = "    def __len__(self):\n        return 8\n") -> str:
    return f"class Mine:\n{length}\n    def examples(self, epoch, start):\n        {body}\n"


BAD = {
    "a wrong shape": (by_number('{"x": [0, 1], "label": 1}'), "`x` of example 2 has shape [2], where"),
    "ragged": (by_number('{"x": [0, 1, 2][: 3 - i % 2], "label": 1}'), "`x` of example 3 has shape [2], where"),
    "text": (by_number('{"x": ["a", "b", "c"], "label": 1}'), "`x` of example 2 is list, where numbers are due"),
    "objects": (by_number('{"x": np.array([None] * 3), "label": 1}'), "`x` of example 2 is an array of object, where"),
    "nested unevenly": (by_number('{"x": [[0], [1, 2]], "label": 1}'), "`x` of example 2 raises ValueError"),
    "no whole number": (by_number('{"x": [0, 1, 2], "label": 1.5}'), "must be whole numbers; example 2 has 1.5"),
    "above the bound": (by_number('{"x": [0, 1, 2], "label": i + 8}'), "`label` must be from 0 to 9; example 2 has 10"),
    "no field": (by_number('{"x": [0, 1, 2], "y": 1}'), "example 2 has no field `label`; it has `x`, `y`"),
    "a pair": (by_number("([0, 1, 2], 1)"), "example 2 is tuple, where a dict by field is due"),
    "nothing": (by_number("None"), "example 2 is None, where a dict by field is due"),
    "an exception": (by_number("1 / 0"), "`Mine.__getitem__(2)` raises ZeroDivisionError: division by zero"),
    "an end": (by_number("exit(2)"), "`Mine.__getitem__(2)` raises SystemExit: 2"),
    "no length": (by_number(length="None"), "`len(Mine(..))` raises TypeError"),
    "a negative length": (by_number(length="-1"), "`len(Mine(..))` raises ValueError"),
    "no example": (by_number(length="0"), "`mine` finds no example: `len(Mine(..))` is 0"),
    "neither kind": ("class Mine:\n    pass\n", "`Mine` gives Mine, which has no `__len__` and no `examples`"),
    "a length alone": ("class Mine:\n    def __len__(self):\n        return 3\n", "no `__getitem__` and no `examples`"),
    "no object": ("def Mine():\n    pass\n", "`Mine` gives None, where an object is due"),
    "a class": ("class Mine:\n    pass\n\nMine = lambda C=Mine: C\n", "`Mine` gives a class, `Mine`, where"),
    "a setting too many": ("class Mine:\n    def __init__(self, a):\n        pass\n", "`Mine()` raises TypeError"),
    "no function": ("mine = 1\n", "the file has no function `Mine`"),
    "no callable": ("Mine = 1\n", "the file has no function `Mine`"),
    "a file that fails": ("import nothing_like_it\n", "the file cannot be loaded: ModuleNotFoundError"),
    "a file that ends": ("raise SystemExit(3)\n", "the file cannot be loaded: SystemExit: 3"),
    "no Python": ("class Mine\n", "the file cannot be loaded: SyntaxError"),
    "too few at once": (several(f"[{GOOD}]"), "`Mine.__getitems__` gives 1 examples, where 2 are due"),
    "no list": (several("3"), "`Mine.__getitems__` gives int, where 2 are due"),
    "columns too short": (several('{"x": [[0, 1, 2]], "label": [1, 2]}'), "`x` of `__getitems__` has shape [1, 3]"),
    "a stream that ends": (stream("yield from []"), "`Mine.examples(1, 0)` ends before example 0, and an epoch has 8"),
    "an end too early": (stream(f"yield {GOOD}"), "`Mine.examples(1, 0)` ends before example 1, and an epoch has 8"),
    "an end of no epoch": (stream(f"yield {GOOD}", ""), "`Mine.examples(1, 0)` ends before example 1"),
    "no stream": (stream("return 3"), "`Mine.examples(1, 0)` raises TypeError"),
    "a stream that fails": (stream("yield 1 / 0"), "`Mine.examples(1, 0)` raises ZeroDivisionError"),
    "a stream of pairs": (stream("yield from [(1, 2)] * 9"), "example 2 is tuple, where a dict by field is due"),
}  # fmt: skip


def source(folder: Path, python: str, **arguments: object) -> BatchSource:
    (folder / "my_data.py").write_text(python)
    call = OwnFunction("my_data.py", digest(python), "Mine")
    return BatchSource("mine", batch=4, fields=FIELDS, call=call, settings={}, **arguments)


def read(folder: Path, python: str, **arguments: object) -> OwnDataset:
    found = load(source(folder, python, **arguments), folder)
    assert isinstance(found, OwnDataset)
    return found


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_example_is_told_with_its_file(name: str, tmp_path: Path) -> None:
    python, says = BAD[name]
    with pytest.raises(RunError) as raised:
        read(tmp_path, python).ready(1, np.array([2, 3]))
    assert says in raised.value.message, raised.value.message
    assert raised.value.file == tmp_path / "my_data.py" and raised.value.code in ("SH502", "SH619")


def test_a_line_is_told_where_python_fails(tmp_path: Path) -> None:
    with pytest.raises(RunError) as raised:
        read(tmp_path, by_number("1 / 0")).ready(1, np.array([2]))
    assert raised.value.line == 10 and raised.value.__cause__ is not None


@pytest.mark.parametrize("word", ["shuffle", "seed"])
def test_a_stream_has_an_order_of_its_own(word: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"whose order is its own, and `{word}` is given"):
        read(tmp_path, stream(f"yield {GOOD}"), **{word: 1})


FORMS = {
    "lists": '{"x": [0, 1, i], "label": i, "more": "text"}',
    "arrays": '{"x": np.array([0, 1, i], "int16"), "label": np.int32(i)}',
    "tensors": '{"x": torch.tensor([[0.0, 1.0, i]], dtype=torch.bfloat16), "label": torch.tensor([i])}',
    "a gradient": '{"x": torch.tensor([0.0, 1.0, i], requires_grad=True), "label": torch.tensor(i)}',
    "a mapping": '__import__("types").MappingProxyType({"x": (0, 1, i), "label": True * i})',
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_come_in_any_form(form: str, tmp_path: Path) -> None:
    numbers, arrays = read(tmp_path, by_number(FORMS[form])).ready(1, np.array([2, 5]))
    assert numbers.tolist() == [2, 5] and arrays["label"].tolist() == [2, 5]
    assert arrays["x"].tolist() == [[0, 1, 2], [0, 1, 5]]
    assert arrays["x"].dtype == np.float32 and arrays["label"].dtype == np.int64


@pytest.mark.parametrize("rows", ['[{"x": [0, 1, i], "label": i} for i in numbers]',
                                  '{"x": [[0, 1, i] for i in numbers], "label": list(numbers)}'])  # fmt: skip
def test_several_come_at_once(rows: str, tmp_path: Path) -> None:
    _, arrays = read(tmp_path, several(rows)).ready(1, np.array([2, 5]))
    assert arrays["x"].tolist() == [[0, 1, 2], [0, 1, 5]] and arrays["label"].tolist() == [2, 5]


def test_two_files_of_one_name_and_text_each_read_what_lies_beside_them(tmp_path: Path) -> None:
    python = (
        "from pathlib import Path\nX = int((Path(__file__).parent / 'x.txt').read_text())\n"
        "class Mine:\n    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, i):\n        return {'x': [X, X, X], 'label': X}\n"
    )
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(str(number))
        _, arrays = read(tmp_path / name, python).ready(1, np.array([0]))
        assert arrays["label"].tolist() == [number]


def test_a_file_that_has_changed_is_not_run(tmp_path: Path) -> None:
    given = source(tmp_path, by_number())
    (tmp_path / "my_data.py").write_text(by_number() + "# later\n")
    with pytest.raises(RunError, match="the file has changed since the program was compiled"):
        load(given, tmp_path)
