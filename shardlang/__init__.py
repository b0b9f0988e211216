"""Shardlang: a declarative language, compiler and runtime for training on many devices.

`shardlang.check`, `plan`, `compile`, `format`, `explain`, `read` and `source` are the compiler from
Python (specs/python.md); what they need is imported when they are first used."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

_OFFERED = {
    "calls": ("check", "compile", "explain", "format", "plan", "read", "source"),
    "values": ("Compiled", "Plan", "Program", "ProgramError", "RankView", "Report"),
    "rows": ("Row",),
    "notebook": ("load_ipython_extension",),
}


def _offered(module: str, name: str) -> property:
    """Some of these names are packages too. Python sets a package's attribute when it imports one;
    here that changes nothing, and `import shardlang.plan.planner` finds its module all the same."""

    def found(package: ModuleType) -> object:
        return getattr(import_module(f"shardlang.api.{module}"), name)

    def put(package: ModuleType, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"`shardlang.{name}` cannot be set")

    return property(found, put)


class _Package(ModuleType):
    __all__ = tuple(name for names in _OFFERED.values() for name in names if name != "load_ipython_extension")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


for _module, _names in _OFFERED.items():
    for _name in _names:
        setattr(_Package, _name, _offered(_module, _name))
sys.modules[__name__].__class__ = _Package
