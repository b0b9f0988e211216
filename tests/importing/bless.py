"""`python -m tests.importing.bless` writes the goldens of imported modules anew; review the difference."""

from __future__ import annotations

from shardlang.importing.imported import Imported
from tests.importing import trained
from tests.importing.fourteen.cases import CASES
from tests.importing.test_import import HERE, MODULES, imported


def write(name: str, found: Imported) -> None:
    (HERE / "golden" / f"{name}.shard").write_text(found.text, "utf-8")
    (HERE / "golden" / f"{name}.map").write_text(found.names, "utf-8")


if __name__ == "__main__":
    (HERE / "golden" / "fourteen").mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        write(name, imported(name))
    for name in CASES:
        write(f"fourteen/{name}", trained.imported(name))
