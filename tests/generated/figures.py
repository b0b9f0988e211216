"""The loss of a generated program and its metrics, from what its model returns and gives by name.

Losses with a mask and its count are written in the several ways that mean the same; metrics read what the loss reads,
the loss itself, ratios over the batch, and values of the model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.generated.numbers import on_total
from tests.generated.scope import RUN, WHOLE, Scope, Value, text, typed

# A loss of `{e}`, an error per item, over the items that `{k}` keeps; `{n}` is the sum of what it keeps, by name.
MASKED = (
    "sum({e} * {k}) / sum({k})", "sum({e} * {k}) / {n}", "sum({e} * {k}) * (1 / sum({k}))", "sum({e} * {k} / sum({k}))",
    "sum({e} * ({k} / {n}))", "sum({k} * {e} / {n})", "mean({e} * {k}) / mean({k})", "sum({e} * {k}) * (1 / {n})",
    "sum({e} * {k}) / (1 + {n})", "sum({e} * {k}) * (1 / (2 + sum({k})))", "sum({e} * {k}) / maximum({n}, 1)",
    "(sum({e} * {k}) + 0.5) / {n}", "sum({e} * {k} * (1 / {n}))", "1 + sum({e} * {k}) / {n} / 2",
    "-(sum(-{e} * {k}) / {n})",
)  # fmt: skip
# Divided by a number that is not the count of all items.
COUNTED = ("sum({e}) / (2 * batch)", "sum({e}) * (1 / batch)", "sum({e}) / 7", "mean({e}) + 0.5", "0.5 - mean(-{e})")
OF_LOSS = ("exp(0.1 * loss)", "loss / 3", "2.5 - loss", "1 / (1 + square(loss))", "loss * loss", "loss + 1", "-loss")


class Figures:
    """Statements of the `train` block up to its metrics. fields: of the data, which a loss or metric may add to."""

    def __init__(self, s: Scope, out: Value, fields: dict[str, str]) -> None:
        self.s, self.out, self.fields = s, out, fields
        self.rng: random.Random = s.rng
        self.lines: list[str] = []
        self.kept: dict[str, str] = {}  # what a mask is of -> its name
        self.counts: dict[str, str] = {}  # mask -> the name of its sum
        self.items: tuple[tuple[str, ...], ...] = ()  # the dims of what is masked
        self.hit = ""

    def write(self, terms: Sequence[str], penalties: Sequence[str]) -> list[str]:
        """terms: further addends of the loss. penalties: values of the model that a metric may read."""
        self.lines.append(f"loss = {' + '.join([self._loss(), *terms])}")
        self._metrics(penalties)
        return self.lines

    def _named(self, stem: str, expression: str) -> str:
        """A statement, and its name."""
        name = stem if not any(line.startswith(f"{stem} =") for line in self.lines) else self.s.shared.fresh(stem)
        self.lines.append(f"{name} = {expression}")
        return name

    # --- the loss ---

    def _loss(self) -> str:
        rng, out = self.rng, self.out
        first = out.dims[0] if out.dims else ()
        kind = rng.choice(["mse_loss", "bce_with_logits", "cross_entropy", "cross_entropy", "nll_loss", "mean", "mean",
                           "masked", "masked", "masked"])  # fmt: skip
        if first != ("batch",) or not out.named:
            self.s.feature("loss without the batch")
            return "mean(square(out))" if kind != "mean" else "sum(square(out)) * 0.01"
        self.s.feature(f"loss {kind}")
        places = [i for i, t in enumerate(out.dims) if i and t]
        if kind == "mean":
            return self._mean()
        if kind == "masked" or (kind in ("cross_entropy", "nll_loss") and not places):
            return self._masked(places)
        if kind in ("mse_loss", "bce_with_logits"):
            self.fields["target"] = typed(out.dims)
            scale = " * 100" if kind == "bce_with_logits" and rng.random() < 0.2 else ""
            return f"{kind}(out{scale}, target)"
        return self._classes(kind, rng.choice(places))

    def _mean(self) -> str:
        forms = ["mean(square(out))", "sum(square(out)) * 1e-2", "mean(square(out)) + 0.5", "1.5 - mean(cos(out))"]
        if not self.s.shared.apart:
            forms += ["mean(abs(out - 0.3))", "amax(out) - mean(out)", f"0.1 * ({self._of_total()})"]
        return self.rng.choice(forms)

    def _of_total(self) -> str:
        return on_total(self.s, self.rng.choice(["mean(square(out))", "sum(square(tanh(out)))"]))

    def _labels(self, at: int) -> tuple[str, ...]:
        """A field of labels for the classes in a dim of the output; that dim."""
        dims = self.out.dims
        self.items = (*dims[:at], *dims[at + 1 :])
        self.fields["label"] = f"i64{typed(self.items)} < {self.s.length(dims[at])}"
        if len(dims[at]) == 1:
            self.hit = f"argmax(out, over = {text(dims[at])}) == label"
        return dims[at]

    def _classes(self, kind: str, at: int) -> str:
        rng, over = self.rng, self._labels(at)
        label = self.s.index(Value("label", self.items, WHOLE, bound=self.s.length(over)), self.s.length(over))
        options = label + rng.choice(["", "", ", ignore_index = 0"])
        if kind == "nll_loss":
            return f"nll_loss(log_softmax(out, over = {text(over)}), {options})"
        scale = " * 100" if rng.random() < 0.1 else ""
        if scale:
            self.s.feature("saturated")
        return f"cross_entropy(out{scale}, {options}{rng.choice(['', '', ', label_smoothing = 0.1'])})"

    def _masked(self, places: Sequence[int]) -> str:
        """Over the items that count, in one of the ways of writing it."""
        rng = self.rng
        if places and rng.random() < 0.7:
            error = self._likelihood(rng.choice(places))
        else:
            self.items = self.out.dims
            self.fields["target"] = typed(self.items)
            error = rng.choice(["square(out - target)", "abs(out - target - 3)", "square(out) * target"])
            error = self._named("error", error) if rng.random() < 0.5 else error
        if rng.random() < 0.15:
            self.s.feature("loss over a number")
            return rng.choice(COUNTED).format(e=error)
        kept = self._mask()
        form = rng.choice(MASKED)
        self.s.feature("masked loss")
        count = self._count(kept) if "{n}" in form else ""
        return form.format(e=error, k=kept, n=count)

    def _likelihood(self, at: int) -> str:
        """The negative logarithm of the label's share, of each item."""
        rng, over = self.rng, text(self._labels(at))
        scores = f"log_softmax(out, over = {over})"
        scores = self._named("logs", scores) if rng.random() < 0.7 else scores
        found = f"gather({scores}, label, over = {over})"
        if len(self.out.dims[at]) == 1 and rng.random() < 0.3:
            hot = f"cast(one_hot(label, {over}), {RUN})"
            found = f"einsum({scores}, {hot} -> {typed(self.items)})"
        if rng.random() < 0.3:
            return f"(0 - {found})"
        return self._named("nll", rng.choice([f"0 - {found}", f"-{found}", f"{found} * -1"]))

    def _mask(self) -> str:
        """What counts, made of data alone; the same one again in a metric."""
        rng, given = self.rng, {}
        if "label" in self.fields:
            given["label"] = f"cast(label != 0, {RUN})"
            given["weighed"] = f"weight * cast(label != 1, {RUN})"
            given["chosen"] = "where(label != 1, weight, 0.25)"
        given["keep"] = rng.choice([f"cast(keep > 0.4, {RUN})", "square(keep)", f"cast(cast(keep > 0.3, i64), {RUN})"])
        given |= {of: "" for of in self.kept}
        of = rng.choice(list(given))
        if of in self.kept:
            return self.kept[of]
        for field in ("weight", "keep"):
            if field in given[of]:
                self.fields[field] = typed(self.items)
        self.kept[of] = self._named("kept", given[of])
        return self.kept[of]

    def _count(self, kept: str) -> str:
        if kept not in self.counts:
            self.counts[kept] = self._named("total", f"sum({kept})")
        return self.counts[kept]

    # --- metrics ---

    def _metrics(self, penalties: Sequence[str]) -> None:
        rng = self.rng
        families = [self._plain, self._plain, self._of_loss, self._ratio, self._ratio, self._shared]
        if penalties:
            families.append(lambda: self._of_model(rng.choice(penalties)))
        for at in range(max(rng.choice([0, 0, 1, 1, 2, 3]), self.s.shared.deep)):
            expression = rng.choice(families)()
            if expression:
                self.s.feature("metric")
                self.lines.append(f"metric m{at} = {expression}")
        if "target" in self.fields and "ids" not in self.fields and not self.s.shared.apart and rng.random() < 0.3:
            self.lines.append(f"metric area = auc(out, cast(target > 0.5, {RUN}))")

    def _plain(self) -> str:
        out = self.out
        given = ["mean(out)", f"sum(cast(out > 0.2, {RUN}))", "sum(out) / 3 + 1", "1 / (3 + mean(square(out)))"]
        if out.dims and out.dims[-1] and len(out.dims) > 1:
            given.append(f"mean(argmax(out, over = {text(out.dims[-1])}) == 1)")
        if not self.s.shared.apart:
            given += ["amax(abs(out))", "mean(square(out - mean(out)))", "amin(out)"]
        if self.hit:
            given += [f"mean({self.hit})"] * 2
        return self.rng.choice(given)

    def _of_loss(self) -> str:
        self.s.feature("metric of the loss")
        return self.rng.choice(OF_LOSS)

    def _of_model(self, value: str) -> str:
        self.s.feature("metric of the model's values")
        given = [f"mean({value})", f"mean(square({value})) / 3", f"2 - sum({value})", f"sum({value}) * 0.1"]
        return self.rng.choice(given)

    def _shared(self) -> str:
        """Of what the loss names: its mask's count, its errors."""
        names = [n for n in ("nll", "error", "logs") if any(line.startswith(f"{n} =") for line in self.lines)]
        counts = list(self.counts.values())
        if not names and not counts:
            return ""
        self.s.feature("metric sharing the loss's values")
        if counts and (not names or self.rng.random() < 0.5):
            return self.rng.choice(["{n}", "{n} / 5", "1 / {n}", "2 * {n} + 1"]).format(n=counts[0])
        return self.rng.choice(["mean({e})", "sum({e}) / 3", "mean(square({e}))"]).format(e=self.rng.choice(names))

    def _ratio(self) -> str:
        """Of the items that count, the share of those that are hit."""
        rng = self.rng
        if not self.items:
            if not self.out.dims or self.out.dims[0] != ("batch",) or not self.out.named:
                return ""
            self.items = self.out.dims
        hit = self.hit or ("out > 0.3" if self.items == self.out.dims else "label == 1")
        kept, hit = self._mask(), f"cast({hit}, {RUN})"
        self.s.feature("metric over the batch")
        if rng.random() < 0.3:
            hit = self._named("hit", hit)
        right = f"sum({hit} * {kept})"
        if rng.random() < 0.4:
            right = self._named("right", right)
        if rng.random() < 0.25:
            share = self._named("share", f"sum({kept}) / 192")
            return f"{right} / 192 / {share}"
        count = self._count(kept) if rng.random() < 0.5 else f"sum({kept})"
        return rng.choice([f"{right} / {count}"] * 3 + [f"1 - {right} / {count}", f"{right} * (1 / {count})",
                                                     f"{right} / (1 + {count})"])  # fmt: skip
