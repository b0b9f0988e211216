"""`python -m tests.importing.bless` writes the goldens of imported modules anew; review the difference."""

from __future__ import annotations

from tests.importing.test_import import HERE, MODULES, imported

if __name__ == "__main__":
    (HERE / "golden").mkdir(exist_ok=True)
    for name in MODULES:
        found = imported(name)
        (HERE / "golden" / f"{name}.shard").write_text(found.text, "utf-8")
        (HERE / "golden" / f"{name}.map").write_text(found.names, "utf-8")
