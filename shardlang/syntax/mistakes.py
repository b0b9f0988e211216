"""The table of syntax mistakes: what was found where, what to say of it, and an example of each.

One table for run time, where recover.py takes the first entry that fits, and for the tests, which
parse every example and expect its entry. recover.py handles brackets and braces."""

from __future__ import annotations

import re

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """`found` must match the token in the way, `before` the token ahead of it, `expects` be a
    terminal allowed there, `unless` not, and `within` the innermost bracket that is open.

    The place shown is that of `found`, with `at_before` that of `before`. In `message` and `help`,
    `{found}` and `{before}` are those tokens. `example` is a whole program with the mistake."""

    code: str
    message: str
    help: str
    example: str
    found: str = ""
    before: str = ""
    expects: str = ""
    unless: str = ""
    within: str = ""
    at_before: bool = False

    def fits(self, found: str, before: str, bracket: str, expected: dict[str, int]) -> bool:
        return (
            (not self.within or self.within == bracket)
            and (not self.found or re.fullmatch(self.found, found) is not None)
            and (not self.before or re.fullmatch(self.before, before) is not None)
            and (not self.expects or self.expects in expected)
            and (not self.unless or self.unless not in expected)
        )


def _forward(line: str) -> str:
    return f"model M {{\n  forward(x: [n]) -> [n] {{\n    {line}\n  }}\n}}\n"


def _strategy(line: str) -> str:
    return f"strategy s {{\n  {line}\n}}\n"


LINE_END = r"\s*|#.*"

MISTAKES: tuple[Mistake, ...] = (
    Mistake("SH105", "this string is not closed", 'end it with `"` on the same line', 'use "layers.shard: Linear\n',
            found=r'"(?:[^"\\\n]|\\[^\n])*\\?'),
    Mistake("SH104", "strings take double quotes", 'write `"text"`', "strategy s {\n  schedule 'gpipe'\n}\n",
            found="'"),
    Mistake("SH104", "there are no semicolons: a line ends a statement", "write one statement a line, without `;`",
            _forward("y = x; return y"), found=";"),
    Mistake("SH104", "`//` divides and starts no comment", "comments start with `#`", "// sizes\ndim n = 4\n",
            found="//"),
    Mistake("SH104", "`&&` is not an operator", "write `and`", "dim n = 4 if a && b else 2\n", found="&"),
    Mistake("SH104", "`||` is not an operator", "write `or`; a pipe is `|>`", "dim n = 4 if a || b else 2\n",
            found=r"\|"),
    Mistake("SH104", "`!` is not an operator", "write `not`", "dim n = 4 if !a else 2\n", found="!"),
    Mistake("SH112", "`def` is Python: the body of a model is `forward`, a function is `fn`",
            "write `forward(x: [batch, d]) -> [batch, d] {` in a model, or `fn name(..) {`",
            "model M {\n  def forward(self, x) {\n    return x\n  }\n}\n", found="def"),
    Mistake("SH112", "`class` is Python: layers and parameters make a `model`", "write `model Name {`",
            "class Net {\n  layer a = Linear(n, n)\n}\n", found="class"),
    Mistake("SH112", "`import` is Python: names come in by `use`", "write `use std.nn: Linear`", "import std.nn\n",
            found="import|from"),
    Mistake("SH112", "there are no loops: a model is a list of assignments",
            "write an array, `layer blocks[4] = ..`, and `x |> blocks`",
            _forward("for block in blocks { x = block(x) }"), found=r"\w+", before="for|while"),
    Mistake("SH112", "there is no `self`: members go by their names", "leave `self.` out", _forward("self.y = x"),
            found=r"\.", before="self"),
    Mistake("SH101", "a slice has the name of a dim before its `=`, and this is an expression",
            "name the dim where it is made, `dim wide = 3 * d`, give the layer `wide`, and write `y[wide = 0..d]`",
            _forward("q = y[3 * d = 0..d]"), found="=", expects="EQUAL", within="["),
    Mistake("SH110", "`=` names a value, it does not compare", "write `==`", "dim n = 4 if m = 2 else 8\n", found="=",
            expects="EQUAL"),
    Mistake("SH111", "the rule after a selector needs a `:`", "write `:` before `{found}`",
            _strategy("at h shard ((2, 4), (4, 1))"), found=r"shard|split|zero|recompute|attend|chunks|place|\[",
            expects="COLON"),
    Mistake("SH101", "`{before}` is a rule of the whole strategy, and this is inside of `at`",
            "write it on a line of its own, outside of the `at`", _strategy("at h: microbatches 4"),
            before="mesh|stages|microbatches|schedule|bucket|strict", expects="LSQB", unless="ASSIGN", at_before=True),
    Mistake("SH101", "an `at` is not allowed in another", "write both selectors in one: `at blocks[*].h: ..`",
            _strategy("at h: at y: recompute"), before="at", expects="LSQB", unless="ASSIGN", at_before=True),
    Mistake("SH101", "`{before}` declares a member of a model, and this is no place for members",
            "write it in the model, ahead of `forward`", _forward("param w: [n] = ones()"), found=r"\w+",
            before="param|layer|state|dim", expects="ASSIGN", unless="RPAR"),
    Mistake("SH101", "a body has no `if`: each of its lines names a value",
            "write `y = a if c else b`; an `if` stands round members, with a `forward` in each branch",
            _forward("if deep { y = x }"), found="if", expects="RETURN"),
    Mistake("SH111", "the names to import are missing", "name them after a `:`, as in `use std.nn: Linear`",
            "use std.nn\n", found=LINE_END, expects="COLON", unless="LSQB"),
    Mistake("SH111", "`freeze` takes a selector after `at`", "write `freeze at {found}`",
            "train {\n  freeze encoder\n}\n", found=r"\w+", before="freeze", expects="ASSIGN", unless="RPAR"),
    Mistake("SH111", "a setting needs a `=` after its name", "write `{before} = {found}..`", "train {\n  epochs 5\n}\n",
            found=r"\w+|\"[^\n]*", before=r"\w+", expects="ASSIGN", unless="RPAR"),
    Mistake("SH111", "`:` is not what gives a name its value", "write `{before} = ..`", "train {\n  epochs: 5\n}\n",
            found=":", before=r"\w+", expects="ASSIGN", unless="RPAR"),
    Mistake("SH119", "two things on one line: `{found}` begins another",
            "put `{found}` on a line of its own, or an operator or a comma before it", _forward("y = x return y"),
            found=r"\w+", before=r"[\w.\"/]+|\)|\]|\}", expects="_NL"),
    Mistake("SH111", "the names to import follow a `:`", "write `: {found}`", "use std.nn Linear\n", found=r"\w+",
            expects="COLON"),
    Mistake("SH111", "axes are named after `over`", "write `over {found}`", _strategy("split batch dp"), found=r"\w+",
            before=r"\w+", expects="OVER"),
    Mistake("SH118", "`{before}` is a word of the language, not a name", "choose another name, such as `{before}_`",
            _forward("return = x"), found="=", before="return", expects="NAME", at_before=True),
    Mistake("SH118", "`{found}` is a word of the language, not a name", "choose another name, such as `{found}_`",
            "dim if = 3\n", found="if|else|return|and|or|not|true|false", expects="NAME"),
    Mistake("SH116", "a closing brace without an opening one", "remove it", "dim n = 4\n}\n", found=r"\}"),
    Mistake("SH109", "nothing says over which axes of the mesh: the line ends after `{before}`",
            "go on with `over dp`, where `dp` is an axis of your `mesh`, or with `over (dp, mp)` for several",
            _strategy("split auto"), found=LINE_END, expects="OVER"),
    Mistake("SH109", "the line ends where {expected} should follow `{before}`", "finish the line", _forward("y = x +"),
            found=LINE_END),
    Mistake("SH101", "`{found}` is not allowed here; expected {expected}",
            "remove `{found}`, or write {expected} in its place", _forward("y = * x")),
)  # fmt: skip
