"""The statements of `forward`: which values get a name of their own, and which are written
where they are used."""

from __future__ import annotations

from typing import Any

from shardlang.importing.authors.lines import Wish
from shardlang.importing.bodies.body import Const, Expr, Layer, Value, free
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.broken import WIDE, broken
from shardlang.importing.text.names import identifier, names_of_members, own_name
from shardlang.importing.text.terms import Terms
from shardlang.importing.text.value_names import ValueNames

# How strongly a sign binds; a pipe binds as 0.
INFIX = {"**": 7, "*": 6, "/": 6, "//": 6, "%": 6, "@": 6, "+": 5, "-": 5, "==": 4, "!=": 4, "<": 4, "<=": 4,
         ">": 4, ">=": 4, "and": 2, "or": 1}  # fmt: skip
_PREFIX = {"neg": ("-", 6), "not": ("not ", 3)}
# Words that are not written as a call.
_WRITTEN = ("path", "neg", "not", "and", "or")
# Names that authors give what has no better one, and what it is called in a model.
_USUAL = {"hidden_states": "x", "hidden_state": "x", "inputs": "x", "input": "x", "inputs_embeds": "x",
          "input_ids": "ids"}  # fmt: skip
_PIPED = 3
# An expression that is longer has a name of its own, if the author gave it one.
_LONG = 72
# A statement that is too wide is cut, at parts of at least so many characters.
_SHORT = 16


class Statements:
    """The body of one forward; `names` of the values that have one."""

    def __init__(self, model: Model, terms: Terms) -> None:
        self.model, self.terms = model, terms
        self.values = model.body.live()
        self.names: dict[Value, str] = {}
        self.author = ValueNames(model.body, self.values)
        # Values that stand in a line of their own, as a line would be too long with them.
        self.apart: set[Value] = set()
        self.uses: dict[Value, list[Value | None]] = {}
        for value in self.values:
            assert value.expr is not None
            for each in value.expr.operands if value in value.results[:1] or not value.results else ():
                if isinstance(each, Value):
                    self.uses.setdefault(each, []).append(value)
        for result in model.body.results:
            self.uses.setdefault(result, []).append(None)
        self.taken = set(names_of_members(model.body)) | set(terms.namer.names[model].values())
        self.taken |= set(model.varying.values())
        self.once = [value for value in self.values if len(self.uses.get(value, [])) == 1]
        self._inputs()

    def _inputs(self) -> None:
        inputs, whole = self.model.body.inputs, not self.model.body.call.scope.path
        plain = iter(("x", "y", "z"))
        for number, value in enumerate(inputs):
            name = value.name if whole else _USUAL.get(value.name, value.name)
            name = name if identifier(name) not in self.taken else value.name
            self.names[value] = self.free(name or self._by_kind(value) or next(plain, f"x{number}"))
        for own in self.model.body.own:
            self.names[own.value] = own_name(self.model.body, own)

    def _by_kind(self, value: Value) -> str:
        """The usual name of an input of whole numbers or truth values."""
        if value.kind == "bool":
            return "keep"
        readers = [
            each.expr.word if each is not None and each.expr is not None else "" for each in self.uses.get(value, [])
        ]
        compared = readers and all(word in ("!=", "==") for word in readers)
        return "" if value.kind != "i64" else "mask" if compared else "ids"

    def free(self, name: str) -> str:
        """A name that is not taken, and is from now on."""
        return free(identifier(name), self.taken)

    def lines(self) -> tuple[list[str], list[str]]:
        """The statements, and what is returned."""
        known, taken = dict(self.names), set(self.taken)
        while True:
            self.names, self.taken = dict(known), set(taken)
            before = self.author.found()
            found = self._lines()
            if self.author.found() != before:
                continue
            longest = {each for value, head, text in self.written if len(head) + len(text) > WIDE
                       for each in self._cut(value, broken(head, text) is None)}  # fmt: skip
            if longest <= self.apart:
                return found
            self.apart |= longest

    def _cut(self, value: Value, must: bool) -> set[Value]:
        """The part of a value, too wide for a line, that gets a line of its own: the outermost that
        the author has a name for, else, if it must be, the longest."""
        here: list[Any] = [value]
        while here:
            here = [each for one in here for each in self._within(one)]
            named = [each for each in here if self.author.wished(each, self.taken) and self._width(each) > _SHORT]
            if named:
                return {max(named, key=self._width)}
        return self._longest(value) if must else set()

    def _width(self, value: Value) -> int:
        return len(self.operand(value)[0])

    def _within(self, value: Value) -> list[Value]:
        assert value.expr is not None
        return [each for each in value.expr.operands if isinstance(each, Value) and each not in self.names
                and each.expr is not None and each.expr.word != "path" and self.chained(value) is not each]  # fmt: skip

    def _longest(self, value: Value) -> set[Value]:
        inner = sorted(self._within(value), key=self._width)
        return (set(inner[-1:]) if inner and self._width(inner[-1]) > _SHORT else
                {part for each in inner for part in self._longest(each)})  # fmt: skip

    def _lines(self) -> tuple[list[str], list[str]]:
        lines = []
        self.written: list[tuple[Value, str, str]] = []
        done: set[Value] = set()
        for value in self.values:
            if value in done or value in self.names:
                continue
            if value.results:
                done.update(value.results)
                lines.append(self._several(value))
            elif self._named(value):
                text = self.statement(value)
                name = self.author.sure(value)
                self.author.twice |= {name} if identifier(name) in self.taken else set()
                self.names[value] = self.free(name or self.author.chosen(value, self.taken, self.once))
                lines.append(self._line(value, f"{self.names[value]} = ", text))
        results = [self.statement(value) for value in self.model.body.results]
        if len(results) == 1:
            results = [self._line(self.model.body.results[0], "return ", results[0]).removeprefix("return ")]
        return lines, results

    def _line(self, value: Value, head: str, text: str) -> str:
        """A statement, on several lines where it is wide."""
        self.written.append((value, head, text))
        return broken(head, text) or head + text

    def _several(self, value: Value) -> str:
        text = self.expr(value)[0]
        names = []
        for each in value.results:
            name = self.author.sure(each) or self.author.chosen(each, self.taken, self.once, "part")
            self.names[each] = self.free(name) if each in self.uses else "_"
            names.append(self.names[each])
        return self._line(value, f"{', '.join(names)} = ", text)

    def _named(self, value: Value) -> bool:
        uses = self.uses.get(value, [])
        if len(uses) > 1:
            return True
        user = uses[0] if uses else None
        if user is None or self.chained(user) is value:
            return False
        name = self.author.sure(value)
        if name and name != user.name and not (self._pipes(value) and self._goes_on(value, name)):
            others = {name for each in self.names if each is not value and each.name == name}
            if identifier(name) not in self.taken or (not others and len(self.expr(value)[0]) > _LONG):
                return True
            self.author.twice |= others
        return value in self.apart

    def _goes_on(self, value: Value, name: str) -> bool:
        """Whether what is piped on from a value gets its name in turn."""
        users = self.uses.get(value, [])
        while len(users) == 1 and users[0] is not None and self._pipes(users[0]) and self._before(users[0]) is value:
            value = users[0]
            if value.wishes:
                return Wish(name, True) in value.wishes
            users = self.uses.get(value, [])
        return False

    def chained(self, value: Value) -> Value | None:
        """The value of the layer before it in an array, if a value is the next layer's."""
        expr = value.expr
        if expr is None or expr.layer is None or expr.layer.array is None or not expr.layer.index or value.results:
            return None
        before = expr.operands[0] if expr.operands else None
        if not isinstance(before, Value) or before.expr is None or before.expr.layer is None or before.results:
            return None
        follows = before.expr.layer.array is expr.layer.array and before.expr.layer.index == expr.layer.index - 1
        alike = before.expr.operands[1:] == expr.operands[1:] and len(self.uses[before]) == 1
        whole = follows and alike and (before.expr.layer.index == 0 or self.chained(before) is not None)
        return before if whole else None

    def _last_of_chain(self, value: Value) -> bool:
        """Whether a value is what a whole array gives."""
        expr = value.expr
        if expr is None or expr.layer is None or expr.layer.array is None:
            return False
        count = len(expr.layer.array.layers)
        return expr.layer.index == count - 1 and (count == 1 or self.chained(value) is not None)

    def operand(self, x: Any) -> tuple[str, int]:
        """The text of an operand, and how strongly it binds."""
        if isinstance(x, Const):
            text = self.terms.number(self.model, x)
            if x.of:
                return text, 6 if x.power == 1 and " " in text else INFIX["**"] if x.power != 1 else 9
            made = x.formula is not None and x not in self.model.varying
            return text, 5 if made and " " in text else 6 if text.startswith("-") else 9
        if x in self.names:
            return self.names[x], 9
        if x.expr is not None and x.expr.word == "path":
            return self.terms.path(self.model, x), 9
        if self._depth(x) >= _PIPED or self._last_of_chain(x):
            return self.pipe(x), 0
        return self.expr(x)

    def statement(self, value: Value) -> str:
        """The text of a value by itself: a pipe, where calls are nested deep."""
        if value in self.names or value.expr is None or value.expr.word == "path":
            return self.operand(value)[0]
        if self._depth(value) >= _PIPED or self._last_of_chain(value):
            return self.pipe(value)
        return self.expr(value)[0]

    def _depth(self, value: Any) -> int:
        if not self._pipes(value):
            return 0
        return 1 + self._depth(self._before(value))

    def _pipes(self, value: Any) -> bool:
        """Whether a value is a call that a pipe can write."""
        if not isinstance(value, Value) or value in self.names or value.expr is None or not value.expr.operands:
            return False
        expr = value.expr
        called = expr.layer is not None or (expr.word.isidentifier() and expr.word not in _WRITTEN)
        return called and expr.into is None and isinstance(expr.operands[0], Value)

    def _before(self, value: Value) -> Any:
        """The value that is piped into the call of a value; of a whole array, into its first."""
        assert value.expr is not None
        before = value.expr.operands[0]
        if self._last_of_chain(value):
            while (inner := self.chained(value)) is not None:
                value = inner
            assert value.expr is not None
            before = value.expr.operands[0]
        return before

    def pipe(self, value: Value) -> str:
        """`x |> fc1 |> relu |> fc2`."""
        parts: list[str] = []
        here: Any = value
        while self._pipes(here):
            parts.append(self._step(here))
            here = self._before(here)
        text, binds = self.operand(here)
        return " |> ".join([text if binds == 9 else f"({text})", *parts[::-1]])

    def _step(self, value: Value) -> str:
        expr = value.expr
        assert expr is not None
        name = expr.word
        if expr.layer is not None:
            name = self.terms.layer(self.model, expr.layer)
            if self._last_of_chain(value):
                name = name.rpartition("[")[0]
        parts = self._arguments(expr, 1)
        parts += self.terms.settings(self.model, expr)
        return f"{name}({', '.join(parts)})" if parts else name

    def expr(self, value: Value) -> tuple[str, int]:
        """The text of what computes a value, and how strongly it binds."""
        expr, model = value.expr, self.model
        assert expr is not None
        if expr.layer is not None:
            return self._call(expr, expr.layer)
        if expr.word in _PREFIX:
            sign, strength = _PREFIX[expr.word]
            text, binds = self.operand(expr.operands[0])
            return f"{sign}{text if binds > strength else f'({text})'}", strength
        if expr.word in INFIX:
            return self._infix(expr)
        parts = self._arguments(expr, 0) + self.terms.settings(model, expr)
        into = ""
        if expr.into is not None:
            into = f" -> {self.terms.dims(model, expr.into)}"
        return f"{expr.word}({', '.join(parts)}{into})", 9

    def _arguments(self, expr: Expr, first: int) -> list[str]:
        """The operands from one on, the last ones by their names."""
        texts = [self.operand(each)[0] for each in expr.operands[first:]]
        unnamed = len(texts) - len(expr.keys)
        return [*texts[:unnamed], *(f"{key} = {text}" for key, text in zip(expr.keys, texts[unnamed:], strict=True))]

    def _infix(self, expr: Expr) -> tuple[str, int]:
        binds = INFIX[expr.word]
        left, right = (self.operand(each) for each in expr.operands)
        one = left[0] if left[1] > binds or (left[1] == binds and expr.word != "**") else f"({left[0]})"
        other = right[0] if right[1] > binds else f"({right[0]})"
        return f"{one} {expr.word} {other}", binds

    def _call(self, expr: Expr, layer: Layer) -> tuple[str, int]:
        name = self.terms.layer(self.model, layer)
        parts = [self.operand(each)[0] for each in expr.operands]
        return f"{name}({', '.join(parts)})", 9
