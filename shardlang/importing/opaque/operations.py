"""The operators that stand for pieces of a module: their declarations, and the Python beside
them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from shardlang.disk.overwrite_guard import MODEL_MARK, OPAQUE_MARK
from shardlang.importing.bodies.body import free
from shardlang.importing.opaque.python import HEAD, PythonFunction
from shardlang.importing.opaque.sizes import Sizes
from shardlang.ops.python_text import docstring

_USUAL = {1: ("d",), 2: ("batch", "d"), 3: ("batch", "seq", "d"), 4: ("batch", "channels", "height", "width")}


@dataclass(eq=False)
class Operation:
    """An operator. kinds: of operands, and last of the result. operands: the dims of each, as they
    are written. result: the same. made: dims of the result alone, with their sizes. about: where it
    stands in the module."""

    name: str
    function: PythonFunction
    kinds: tuple[str, ...]
    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    made: tuple[tuple[str, str], ...]
    about: str

    @property
    def key(self) -> tuple[object, ...]:
        """It is equal for two that are one."""
        return self.function.code, self.kinds, self.operands, self.result, self.made

    @property
    def dims(self) -> list[str]:
        """The dims that operands have."""
        return list(dict.fromkeys(dim for dims in self.operands for dim in dims if not dim.isdigit()))

    def text(self, file: str, free: Collection[str]) -> str:
        """The declaration, with the Python in a file. free: dims that may be split."""
        operands = zip(self.function.operands, self.kinds, self.operands, strict=False)
        given = [f"{name}: {kind}[{', '.join(dims)}]" for name, kind, dims in operands]
        given += [f"{name}: float = {value!r}" for name, value in self.function.settings.items()]
        lines = [f"operator {self.name}({', '.join(given)}) -> {self.kinds[-1]}[{', '.join(self.result)}] {{"]
        lines += [f"  dim {name} = {size}" for name, size in self.made]
        lines += self._whole(free)
        count = " * ".join([str(self.function.steps), *(dim for dim in self.result if dim != "1")])
        lines += [f"  flops {count}", f'  python "{file}": {self.name}', "}"]
        return "\n".join(lines) + "\n"

    def _whole(self, free: Collection[str]) -> list[str]:
        whole = [dim for dim in [*self.dims, *(name for name, _ in self.made)] if dim not in free]
        found = [f"`{dim}`" for dim in self.dims if dim in free]
        names = " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
        lines = [f"  # {names} may be split: found by trial"] if found else []
        return [*lines, f"  whole {', '.join(whole)}"] if whole else lines


def named(sizes: Sizes, ranks: list[int], operands: list[str]) -> list[str]:
    """A name for each group of dims. ranks: how many dims each operand has."""
    found: list[str] = []
    for group in sizes.groups:
        at, dim = group[0]
        usual = _USUAL.get(ranks[at], ()) if at == 0 else ()
        name = usual[dim] if usual else f"{operands[at]}_{dim + 1}"
        while name in {*found, *operands}:
            name = f"{name}_"
        found.append(name)
    return found


@dataclass
class Operations:
    """All that a module has, in the order in which they are met."""

    place: str
    known: dict[tuple[object, ...], Operation] = field(default_factory=dict)

    def add(self, made: Operation) -> Operation:
        """The operation that is the same, or this one under a name of its own."""
        if made.key not in self.known:
            made.name = free(made.name, set(self.names))
            self.known[made.key] = made
        return self.known[made.key]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.known.values()]

    def declarations(self, file: str, free: dict[str, Collection[str]]) -> str:
        """The text of the declarations, before the formatter."""
        head = f"{MODEL_MARK} `{self.place}`: steps that the language has no operator for.\n"
        parts = [f"\n# {each.about}.\n{each.text(file, free.get(each.name, ()))}" for each in self.known.values()]
        return head + "".join(parts)

    def python(self) -> str:
        """The text of the Python file."""
        functions = "".join(f"\n\n{each.function.text(each.name)}" for each in self.known.values())
        return f"{docstring(f'{OPAQUE_MARK} from `{self.place}`: steps as torch traced them.')}\n\n{HEAD}{functions}"
