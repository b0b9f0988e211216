"""`shardc export` with maps, folders and weights that do not fit: SH609, and nothing is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shardlang.checkpoints import headers
from shardlang.checkpoints import weight_files as files
from shardlang.checkpoints.index import Saved
from shardlang.cli.main import run
from shardlang.disk.overwrite_guard import SAVED_MARK
from shardlang.errors import RunError
from shardlang.runtime.state import weights as state

MAP = """\
# Theirs
prefix model.
up.weight = joined.weight transposed part 1 of 2
side.weight = joined.weight transposed part 2 of 2
norm.weight? = norm.gain
down[*].weight = last.*.kernel
"""


def ours() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    shapes = {"up.weight": (4, 3), "side.weight": (4, 3), "down[0].weight": (2, 5), "down[1].weight": (2, 5)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def theirs() -> dict[str, np.ndarray]:
    shapes = {"model.joined.weight": (3, 8), "model.last.0.kernel": (2, 5), "model.last.1.kernel": (2, 5)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_file(ours(), "w.safetensors")
    model(theirs())
    Path("their.map").write_text(MAP)
    return tmp_path


def model(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    Path("like").mkdir(exist_ok=True)
    Path("like/config.json").write_text("{}")
    save_file(tensors, "like/model.safetensors", metadata or {"format": "pt"})


LINE = ["export", "w.safetensors", "--map", "their.map", "--like", "like", "-o", "out"]


def refused(capsys: pytest.CaptureFixture[str], *line: str, code: int = 1) -> str:
    before = sorted(path.name for path in Path().iterdir())
    assert run([*(line or LINE)]) == code
    assert sorted(path.name for path in Path().iterdir()) == before
    return capsys.readouterr().err


def test_parts_are_joined_and_turned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LINE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "folder": "out", "files": ["model.safetensors"], "tensors": 3, "bytes": 4 * 44,
        "tied": {}, "taken_from_like": [], "left_out": [],
    }  # fmt: skip
    mine, found = ours(), load_file("out/model.safetensors")
    joined = np.concatenate([mine["up.weight"], mine["side.weight"]]).T
    assert np.array_equal(found["model.joined.weight"], joined)
    assert np.array_equal(found["model.last.1.kernel"], mine["down[1].weight"])


def test_the_map_of_another_model_is_told_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for like in ((), ("--like", "like")):
        said = refused(capsys, "export", "w.safetensors", "--map", "std.gpt2", *like, "-o", "out")
        assert said.count("error[") == 1 and "the map has no line for `down[0].weight`, " in said
        assert "help: it is the map of another model: write one, each line with its name in the other model:" in said


MAPS = {
    "a part is missing": (("side.weight = joined.weight transposed part 2 of 2\n", ""), [
        "the map has no line for `side.weight` of the weights", "fills `model.joined.weight` from 1/2 of it on"]),
    "a part twice": (("part 2 of 2", "part 1 of 2"), ["`side.weight` and `up.weight` would both fill the same of"]),
    "parts that overlap": (("part 2 of 2", "part 2 of 3"), ["would both fill the same of `model.joined.weight`"]),
    "the beginning is missing": (("part 1 of 2", "part 2 of 2"), ["no line fills the beginning of `model.joined"]),
    "one is not transposed": (("transposed part 2", "part 2"), ["all transposed or none"]),
    "none is transposed": ((" transposed", ""), ["`up.weight` is [4, 3], and `model.joined.weight` [3, 8], of which"]),
    "two of ours in one": (("last.*.kernel", "last.0.kernel"), ["`down[*].weight` has 1 `*`, and `last.0.kernel` 0"]),
    "two lines": (("# Theirs", "up.* = other.*"), ["two lines of the map are for `up.weight`"]),
    "a name that they lack": (("last.*", "lost.*"), [
        "`down[0].weight` is `lost.0.kernel`, which the other model does not have",
        "no line of the map fills `model.last.0.kernel`, `model.last.1.kernel` of the other model"]),
    "a line of nothing": (("# Theirs", "more.weight = more"), ["the weights have no `more.weight`"]),
    "lines of nothing": (("# Theirs", "\n".join(f"more{at}.table = more" for at in "abc")), [
        "the weights have no `morea.table`, `moreb.table`, `morec.table`", "`morea.table? = ...` lets them lack it"]),
    "a name that is misspelt": (("up.weight", "up.weigth"), [
        "the weights have no `up.weigth`", "did you mean `up.weight`?"]),
    "a misspelt name of an array": (("down[*].weight", "down[*].wieght"), ["did you mean `down[*].weight`?"]),
}  # fmt: skip


def test_a_line_that_would_transpose_one_dim_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({**ours(), "up.bias": np.zeros(4, np.float32)}, "w.safetensors")
    model({**theirs(), "model.up.b": np.zeros(4, np.float32)})
    Path("their.map").write_text(f"{MAP}up.bias = up.b transposed\n")
    assert "`up.bias` has fewer than two dims, and `transposed` exchanges two" in refused(capsys)
    Path("their.map").write_text(f"{MAP}up.bias = up.b\n")
    assert run(LINE) == 0


@pytest.mark.parametrize("case", MAPS)
def test_a_map_that_is_not_one_to_one_is_refused(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (old, new), facts = MAPS[case]
    assert old in MAP
    Path("their.map").write_text(MAP.replace(old, new))
    said = refused(capsys)
    assert [fact for fact in facts if fact not in said] == []


@pytest.mark.parametrize("case", MAPS)
def test_nothing_is_said_of_a_folder_that_was_not_given(
    case: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("their.map").write_text(MAP.replace(*MAPS[case][0]))
    failed = run([word for word in LINE if word not in ("--like", "like")])
    said = capsys.readouterr().err
    assert "--like" not in said and ("error[SH609]" in said or not failed or case == "two of ours in one")


def test_what_the_map_ignores_is_taken_and_what_is_tied_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {"head.kernel": np.zeros((2, 5), np.float32), "model.steps": np.array(7)}
    model({**theirs(), **head})
    assert "no line of the map fills `model.steps`, `head.kernel` of the other model" in refused(capsys)
    Path("their.map").write_text(f"{MAP}ignore steps\nignore head.kernel\n")
    assert "say so in the map: `tied head.kernel = last.0.kernel`" in refused(capsys)
    Path("their.map").write_text(f"{MAP}ignore steps\ntied head.kernel = last.1.kernel\n")
    assert run(LINE) == 0
    said = capsys.readouterr().out
    assert "head.kernel is model.last.1.kernel once more\n" in said
    assert "taken from like, as the map ignores them: model.steps\n" in said
    found = load_file("out/model.safetensors")
    assert np.array_equal(found["head.kernel"], ours()["down[1].weight"]) and found["model.steps"] == 7


def test_element_types(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half way numbers round to even ones; nothing becomes infinite, or another kind of number, unseen."""
    model({**theirs(), "model.last.0.kernel": np.zeros((2, 5), np.float16)})
    assert run(LINE) == 0
    found = load_file("out/model.safetensors")["model.last.0.kernel"]
    assert np.array_equal(found, ours()["down[0].weight"].astype(np.float16))
    save_file({**ours(), "down[0].weight": np.array([[7e4] + [1.0] * 4] * 2, np.float32)}, "w.safetensors")
    line = [*LINE[:-1], "two"]
    assert "`down[0].weight` has 70000, which f16 cannot hold" in refused(capsys, *line)
    save_file({**ours(), "down[0].weight": np.ones((2, 5), np.int64)}, "w.safetensors")
    assert "`down[0].weight` is i64, which does not become f16" in refused(capsys, *line)


def test_an_index_alone_is_enough(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = {name: f"model-0000{1 + ('last' in name)}-of-00002.safetensors" for name in theirs()}
    Path("like/model.safetensors").unlink()
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": home})
    Path("like/model.safetensors.index.json").write_text(text)
    Path("like/config.json").write_text('{"dtype": "float16"}')
    assert run(LINE) == 0
    found = load_file("out/model-00001-of-00002.safetensors")
    assert found["model.joined.weight"].shape == (3, 8) and found["model.joined.weight"].dtype == np.float16
    assert json.loads(Path("out/model.safetensors.index.json").read_text())["metadata"] == {"total_size": 2 * 44}
    save_file({}, "like/model-00001-of-00002.safetensors")
    line = [*LINE[:-1], "two"]
    assert "the index names `model-00002-of-00002.safetensors`, which is not there" in refused(capsys, *line)
    capsys.readouterr()


INDEXES = {
    "another folder": ({"weight_map": {"a": "../../out.safetensors"}}, "which is no safetensors file of the folder"),
    "no safetensors": ({"weight_map": {"a": "model.py"}}, "which is no safetensors file of the folder"),
    "no names": ({"weight_map": {"a": 3}}, "the index has no `weight_map`"),
    "no map": ({"weights": {}}, "the index has no `weight_map`"),
    "a list": ([], "`model.safetensors.index.json` holds no object"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_that_means_harm(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, fact = INDEXES[case]
    Path("like/model.safetensors.index.json").write_text(json.dumps(index))
    said = refused(capsys)
    assert said.startswith("error[SH609]: ") and fact in said


def test_pickled_weights_are_not_opened(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("like/model.safetensors").rename("like/pytorch_model.bin")
    assert "`pytorch_model.bin` is pickled, and is not opened" in refused(capsys)


def test_nothing_that_is_there_is_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    assert "error[SH512]: the folder would replace what is there" in refused(capsys)
    assert "there is no folder `none` to write to" in refused(capsys, *LINE[:-1], "none/out")


def test_files_that_are_not_there_or_damaged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "`no` does not exist" in refused(capsys, "export", "no", *LINE[2:], code=2)
    assert "error[SH609]: the name map does not exist" in refused(capsys, *LINE[:3], "no.map", *LINE[4:])
    assert "the library has `std.gpt2`" in refused(capsys, *LINE[:3], "std.bert", *LINE[4:])
    Path("like/model.safetensors").write_bytes(b"\xff" * 64)
    assert "error[SH504]: the file is no safetensors file" in refused(capsys)
    Path("like/model.safetensors").unlink()
    assert "there is neither `model.safetensors` nor `model.safetensors.index.json`" in refused(capsys)


GOOD = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}


def _file(header: object, data: int, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


_WORD = json.dumps(GOOD).encode()[1:-1]
HOSTILE = {
    "no bytes": b"", "less than a length": b"\1\0", "a length beyond all memory": _file(b"{}", 0, 2**63),
    "a length beyond the file": _file(GOOD, 16, 500), "a cut end": _file(GOOD, 8), "more than tensors": _file(GOOD, 24),
    "offsets that lie": _file({"w": {**GOOD["w"], "data_offsets": [0, 8]}}, 8),
    "a size below 0": _file({"w": {**GOOD["w"], "shape": [-4]}}, 16),
    "more elements than numbers have": _file({"w": {**GOOD["w"], "shape": [2**62, 4]}}, 16),
    "ranges that overlap": _file({**GOOD, "v": {**GOOD["w"], "data_offsets": [8, 24]}}, 24),
    "a name twice": _file(b"{%s, %s}" % (_WORD, _WORD.replace(b"0, 16", b"16, 32")), 32),
    "no type": _file({"w": {"shape": [4], "data_offsets": [0, 16]}}, 16), "a list": _file([], 0),
    "what is nested without end": _file(b"[" * 100_000, 0), "no text": _file(b'{"\xff": 1}', 0),
}  # fmt: skip


@pytest.mark.parametrize("case", [*HOSTILE, "a pipe", "a device", "a link to a pipe", "a folder"])
def test_weights_that_are_no_safetensors_file(case: str, tmp_path: Path) -> None:
    """One place reads all headers: for export, for files of another model, and to start a run."""
    path = tmp_path / "w.safetensors"
    if case in HOSTILE:
        path.write_bytes(HOSTILE[case])
    elif case == "a folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("/dev/zero" if case == "a device" else tmp_path / "pipe")
    for read in (files.SafetensorsFiles, files.SafetensorsFile, lambda at: state.InitialWeights(at, [])):
        with pytest.raises(RunError) as told:
            read(path)  # type: ignore[operator]
        assert told.value.code == "SH504" and told.value.file == path


def test_a_header_that_is_written_is_read_again(tmp_path: Path) -> None:
    tensors = {"a": Saved("F32", (3, 5)), "b": Saved("BOOL", ()), "c": Saved("BF16", (0, 7))}
    for some, mark in ((tensors, headers.PLAIN_MARK), (tensors, SAVED_MARK), ({}, SAVED_MARK)):
        head = headers.written(some, mark)
        (tmp_path / "w").write_bytes(head + bytes(sum(each.nbytes for each in some.values())))
        found = files.SafetensorsFile(tmp_path / "w")
        assert found.tensors == some and found.begin == len(head) and len(head) % 8 == 0
        assert [*found.places] == [*some]


def test_a_pipe_in_the_place_of_a_configuration_is_not_waited_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    Path("like/config.json").unlink()
    Path("like/config.json").symlink_to("../pipe")
    assert run(LINE) == 1
    assert "error[SH609]: `config.json` cannot be read: it is no plain file" in capsys.readouterr().err
