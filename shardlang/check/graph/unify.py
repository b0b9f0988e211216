"""Identity of dims while a program is checked: literal dims that unify, and dims of a model seen
from its caller.

Turns terms into resolved terms (literals replaced by what they have become), outward terms (one
call further out) and canonical terms (the dims of the whole program). Reports nothing; callers say
what two different dims mean."""

from __future__ import annotations

from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.types.dim import Dim, TensorType, Term, term_size


@dataclass
class Unifier:
    """`become`: a unified literal -> its term. `outer`: a dim local to a model or call -> the term
    it was given.

    A dim in neither map stands for itself. Every chain ends, because a dim is only ever mapped to
    older or outer dims."""

    become: dict[Dim, Term] = field(default_factory=dict)
    outer: dict[Dim, Term] = field(default_factory=dict)
    literals: list[Dim] = field(default_factory=list)  # all that were made, in order
    _canonical: dict[Dim, Term] = field(default_factory=dict)
    _factors: dict[Dim, int] = field(default_factory=dict)

    def local(self, name: str, term: Term, home: str, steps: int = 1) -> Dim:
        """A new dim of a model or call at path `home`; it is `term` outside, `steps` calls up."""
        for _ in range(steps):
            dim = Dim(name, term_size(term), home=home)
            self.rename(dim, term)
            term = (dim,)
        return dim

    def rename(self, dim: Dim, term: Term) -> None:
        """A new dim is `term` outside."""
        self.outer[dim] = term
        self._factors[dim] = self.factors(term)

    def literal(self, name: str, size: int | None, span: Span | None = None) -> Dim:
        """A new dim made from a number."""
        self.literals.append(Dim(name, size, span, True))
        return self.literals[-1]

    def factors(self, term: Term) -> int:
        """How many factors a term has in the dims of the outermost caller."""
        return sum(self._factors.get(dim, 1) for dim in term)

    def fresh(self, name: str, size: int | None) -> Term:
        """A new literal dim as a term; 1 is no dim at all."""
        return () if size == 1 and not name else (self.literal(name or str(size), size),)

    def resolve(self, term: Term) -> Term:
        """The term with unified literals replaced, in the same model's dims."""
        become = self.become
        if not become:
            return term
        for dim in term:
            if dim in become:
                return tuple(d for part in term for d in self._settled(part))
        return term

    def _settled(self, dim: Dim) -> Term:
        """The dim that this one has become in the end. Chains are shortened on the way, as
        thousands of literals may meet."""
        passed: list[Dim] = []
        term: Term = (dim,)
        while len(term) == 1 and term[0] in self.become:
            passed.append(term[0])
            term = self.become[term[0]]
        if len(term) > 1:
            term = self.resolve(term)
        for each in passed:
            self.become[each] = term
        return term

    def outward(self, term: Term, steps: int = 1) -> Term:
        """The term in the caller's dims, or in those of who stands `steps` calls further out."""
        for _ in range(steps):
            term = self._outward(term)
        return term

    def _outward(self, term: Term) -> Term:
        """One call further out.

        A literal that has become nothing here gets a literal of the caller's own: what the caller
        unifies that with is in the caller's dims, and must not show up inside."""
        term = self.resolve(term)
        if len(term) == 1 and (only := self.outer.get(term[0])) is not None:
            return self.resolve(only)
        found: list[Dim] = []
        for dim in term:
            outside = self.outer.get(dim)
            if outside is None:
                outside = (dim,)
                if dim.literal:
                    outside = self.outer[dim] = (self.literal(dim.name, dim.size, dim.span),)
            found.extend(outside)
        return self.resolve(tuple(found))

    def one_outside(self, a: Term, b: Term) -> bool:
        """Whether two terms are one for the outermost caller."""
        return self._outermost(a) == self._outermost(b)

    def _outermost(self, term: Term) -> Term:
        term = self.resolve(term)
        while len(term) == 1 and (further := self.outer.get(term[0])) is not None:
            term = self.resolve(further)
        return term

    def outward_type(self, type: TensorType, steps: int = 1) -> TensorType:
        return TensorType(type.dtype, tuple(self.outward(t, steps) for t in type.dims))

    def resolve_type(self, type: TensorType) -> TensorType:
        if not self.become:
            return type
        return TensorType(type.dtype, tuple(self.resolve(t) for t in type.dims))

    def canonical(self, term: Term) -> Term:
        """The term in the dims of the whole program. Only after checking: the answers are kept."""
        if len(term) == 1:
            return self._root(term[0])
        return tuple(d for part in term for d in self._root(part))

    def _root(self, dim: Dim) -> Term:
        known = self._canonical.get(dim)
        if known is None:
            settled = self._settled(dim)
            further = self.outer.get(dim) if settled == (dim,) else settled
            known = (dim,) if further is None else self.canonical(further)
            self._canonical[dim] = known
        return known

    def same(self, a: Term, b: Term) -> bool:
        """Whether two terms are one. A literal unifies with a term of its size."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return True
        if self._may_become(a, b):
            return self._unify(a[0], b)
        if self._may_become(b, a):
            return self._unify(b[0], a)
        if len(a) != len(b) or len(a) < 2:
            return False
        if not all(
            x is y or self._may_become((x,), (y,)) or self._may_become((y,), (x,)) for x, y in zip(a, b, strict=True)
        ):
            return False
        return all(self.same((x,), (y,)) for x, y in zip(a, b, strict=True))

    def _may_become(self, literal: Term, term: Term) -> bool:
        if len(literal) != 1 or not literal[0].literal or literal[0] in term:
            return False
        size, other = literal[0].size, term_size(term)
        return size is None or other is None or size == other

    def _unify(self, literal: Dim, term: Term) -> bool:
        given = self.outer.get(literal)
        if given is not None and not self.same(given, self.outward(term)):
            return False
        self.become[literal] = term
        return True
