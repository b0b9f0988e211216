"""Names of values: those that a line of the author gives for sure, and those that a line would
give, where a value needs one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.importing.bodies.body import Body, Value
from shardlang.importing.text.names import identifier, layer_name

# What is said of whole numbers that an operator gives.
_WHOLE = {"abs": "distance", "neg": "distance"}


class ValueNames:
    """The names of the values of one body. Each round of writing keeps what the one before found:
    `twice` are names that two values have for sure, of which the last has it; `owners` has the
    value that gets a name which several would have; `without` are values that gave theirs up."""

    def __init__(self, body: Body, values: Sequence[Value]) -> None:
        self.body = body
        self.place = {value: at for at, value in enumerate(values)}
        self.last = {value.name: value for value in values}
        self.twice: set[str] = set()
        self.owners: dict[str, Value] = {}
        self.without: set[Value] = set()
        self.inputs = {value.name for value in body.inputs}

    def found(self) -> tuple[set[str], dict[str, Value], set[Value]]:
        """All that is known so far."""
        return set(self.twice), dict(self.owners), set(self.without)

    def sure(self, value: Value) -> str:
        """The name that the author gave a value, if it is not needed for another."""
        lost = value in self.without or (value.name in self.twice and self.last[value.name] is not value)
        return "" if lost else value.name

    def wished(self, value: Value, taken: set[str]) -> str:
        """The best name that a value can have, of those that its lines would give; "" if there is
        none."""
        for name in (identifier(wish.name) for wish in value.wishes):
            if name not in taken and not self._sure_of(name) and self.owners.get(name) in (None, value):
                return name
        return ""

    def chosen(self, value: Value, taken: set[str], once: Sequence[Value] = (), usual: str = "h") -> str:
        """A name for a value that needs one. once: values that need none of their own, and that
        give theirs up for it."""
        for wish in value.wishes:
            name = identifier(wish.name)
            owner = self.owners.setdefault(name, value)
            if owner is not value and self._rank(value, name) > self._rank(owner, name):
                self.owners[name] = value
            if (holder := self._sure_of(name)) is not None and holder in once:
                self.without.add(holder)
        return self.wished(value, taken) or self._plain(value, usual)

    def _rank(self, value: Value, name: str) -> tuple[bool, int]:
        """How well a name fits a value: best where its line does not read the name itself, then
        the later the better."""
        again = all(wish.again for wish in value.wishes if identifier(wish.name) == name)
        return not again, self.place.get(value, 0)

    def _sure_of(self, name: str) -> Value | None:
        """The value that has a name for sure."""
        value = self.last.get(name)
        return value if value is not None and value not in self.without else None

    def _plain(self, value: Value, usual: str) -> str:
        """A name by what computes a value, or one of its lines' that another has too."""
        expr = value.expr
        word = _WHOLE.get(expr.word, "") if value.kind and expr is not None else ""
        plain = [wish.name for wish in value.wishes if not wish.name[-1].isdigit() and wish.name not in self.inputs]
        again = plain[0] if plain else ""
        if word or again or value.kind:
            return word or again or ("mask" if value.kind == "bool" else "index")
        if expr is None or expr.layer is None or value.results:
            return usual
        name = layer_name(self.body, expr.layer)
        short = re.sub(r"_(proj|projection)$", "", name)
        return usual if short == name else short
