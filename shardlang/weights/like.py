"""A folder of another library's model -> the files of weights that a folder like it has.

The files are safetensors, one or several by an index. Where the index is there and they are not,
their tensors are known by name. Without a folder the name map says what there is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardlang.check.program import NameMap
from shardlang.checkpoints.headers import require_plain
from shardlang.checkpoints.index import Saved
from shardlang.checkpoints.weight_files import SafetensorsFile
from shardlang.errors import RunError
from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass
from shardlang.weights.backwards import their_names

ONE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
# Files that `from_pretrained` reads besides: settings, tokenizers, code of the model.
_BESIDES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
_LARGEST = 10**8
# Element types, by the names that configurations have for them.
_TYPES = {facts.torch: name.upper() for name, facts in DTYPES.items() if facts.floating}


@dataclass(frozen=True)
class Like:
    """A folder to be like, None where there is none. files: of weights, by name; None where they
    are not there. homes: the file of each tensor. tensors: their types; None where those are not
    known. besides: the further files. dtype: the type that the configuration gives, or ""."""

    folder: Path | None
    files: Mapping[str, SafetensorsFile | None]
    homes: Mapping[str, str]
    tensors: Mapping[str, Saved | None]
    besides: tuple[Path, ...]
    dtype: str


def like(folder: Path) -> Like:
    """RunError SH609 where it is no such folder, SH504 where a file of weights is damaged."""
    config = _json(folder / CONFIG, "") if (folder / CONFIG).exists() else {}
    index = folder / INDEX
    homes = _homes(index) if index.exists() else dict.fromkeys(_first(folder), ONE)
    files: dict[str, SafetensorsFile | None] = dict.fromkeys(homes.values())
    there = [name for name in files if (folder / name).is_file()]
    if there and len(there) < len(files):
        lacking = next(name for name in files if name not in there)
        raise RunError("SH609", f"the index names `{lacking}`, which is not there", file=folder)
    files.update({name: SafetensorsFile(folder / name) for name in there})
    tensors: dict[str, Saved | None] = dict.fromkeys(homes)
    for name in there:
        file = files[name]
        assert file is not None
        tensors.update(file.tensors)
        other = next((each for each in file.tensors if homes.get(each) != name), None)
        if other is not None:
            raise RunError("SH609", f"`{other}` is in `{name}`, and the index does not say so", file=index)
        homes = {each: home for each, home in homes.items() if home != name or each in file.tensors}
    besides = [path for path in sorted(folder.iterdir()) if path.suffix in _BESIDES and path.is_file()]
    dtype = _TYPES.get(str(config.get("dtype", config.get("torch_dtype"))), "")
    return Like(folder, files, homes, tensors, tuple(path for path in besides if path != index), dtype)


def of_map(names: NameMap, ours: Iterable[str]) -> Like:
    """One file of all that a map fills from ours, in their types."""
    theirs = their_names(names, ours)
    return Like(None, {ONE: None}, dict.fromkeys(theirs, ONE), dict.fromkeys(theirs), (), "")


def _first(folder: Path) -> list[str]:
    """The tensors of a folder's one file."""
    path = folder / ONE
    if not path.is_file():
        pickled = sorted(each.name for each in folder.iterdir() if each.suffix in (".bin", ".pt", ".pth"))
        why = f"; `{pickled[0]}` is pickled, and is not opened" if pickled else ""
        help = "save it once by `save_pretrained`, which writes safetensors, and name that folder"
        raise RunError("SH609", f"there is neither `{ONE}` nor `{INDEX}`{why}", file=folder, help=help)
    return list(SafetensorsFile(path).tensors)


def _homes(index: Path) -> dict[str, str]:
    """The file of each tensor, by the index."""
    found = _json(index, "the index cannot be read:").get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(home, str) for home in found.values()):
        raise RunError("SH609", "the index has no `weight_map` of names of files", file=index)
    for home in found.values():
        if Path(home).name != home or home.startswith(".") or not home.endswith(".safetensors"):
            raise RunError("SH609", f"the index names `{home}`, which is no safetensors file of the folder", file=index)
    return found


def _json(path: Path, why: str) -> dict[str, Any]:
    try:
        require_plain(path)
        if path.stat().st_size > _LARGEST:
            raise RunError("SH609", f"{why} `{path.name}` of at most {_LARGEST:,} bytes", file=path)
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError("SH609", f"{why} `{path.name}`", file=path.parent) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError("SH609", f"`{path.name}` cannot be read: {error}", file=path) from None
    if not isinstance(found, dict):
        raise RunError("SH609", f"`{path.name}` holds no object", file=path)
    return found
