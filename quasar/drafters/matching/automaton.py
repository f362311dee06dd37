"""Finding the end of a growing text in what came before, or in another text, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Sequence

END = -1
"""Stands between two texts of a corpus; no token has this id, so nothing is matched or drafted across it."""

_COMPARED = 32
"""Tokens at the end of what was read that are compared, to notice a text that was replaced."""


class State:
    """A set of strings that end at the same places of a text, in a suffix automaton.

    Attributes:
        length: tokens of its longest string.
        link: the state of the longest string that ends here and at other places too; ``None`` for the empty string.
        next: the state of its strings with a token after them.
        counts: how often each token followed.
        total: sum of the counts.
        best: the token that is drafted after its strings.
    """

    __slots__ = ("best", "counts", "length", "link", "next", "total")

    def __init__(self, length: int) -> None:
        self.length = length
        self.link: State | None = None
        self.next: dict[int, State] = {}
        self.counts: dict[int, int] = {}
        self.total, self.best = 0, END

    def shortened(self, length: int) -> State:
        """Return a state for its strings of at most ``length`` tokens, which are about to end at other places too."""
        twin = State(length)
        twin.link, twin.total, twin.best = self.link, self.total, self.best
        twin.next, twin.counts = self.next.copy(), self.counts.copy()
        return twin


class SuffixAutomaton:
    """All strings of a growing text, and what followed those of at most ``longest`` tokens how often.

    A token costs the same amortised time at any length of the text: building is linear (Blumer et al., "The smallest
    automaton recognizing the subwords of a text", 1985), and the counts of at most ``longest`` states are raised.

    Args:
        longest: longest match that is looked for, in tokens; without a bound a text of one repeated token would cost
            quadratic time.
        recent: draft the latest continuation instead of the most frequent one; among equally frequent ones the latest
            is taken in any case.
    """

    def __init__(self, longest: int, recent: bool = False) -> None:
        self.root = State(0)
        self._longest, self._recent = longest, recent
        self._text = self.root  # the state of the whole text
        self._end, self._depth = self.root, 0  # that of its last tokens, `longest` of them if there are so many

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self._count(token)
        self._extend(token)
        end = self._end
        if end.link is not None and self._depth <= end.link.length:
            end = end.link  # the state was split, and the shorter strings went there
        self._end, self._depth = self._cut(end.next[token], self._depth + 1)

    def match(self) -> tuple[State, int]:
        """Return the longest end of the text that occurred before: its state and its length in tokens."""
        if self._end is not self._text:
            return self._end, self._depth
        state = self._text.link or self.root
        return state, state.length

    def follow(self, state: State, length: int, token: int) -> tuple[State, int]:
        """Return the match in this text of another one that goes on with ``token``, given its match so far."""
        while token not in state.next:
            if state.link is None:
                return state, 0
            state = state.link
            length = state.length
        return self._cut(state.next[token], length + 1)

    def continuation(self, state: State, length: int, count: int, least: float) -> list[tuple[int, int]]:
        """Return up to ``count`` tokens that follow a match, each with the length of the match before it.

        Args:
            state: of the match.
            length: of the match.
            count: tokens wanted.
            least: ends the list where the product of the shares that its tokens have among what followed is smaller.
        """
        found: list[tuple[int, int]] = []
        share = 1.0
        while len(found) < count and length:
            if not state.total:  # its strings stand at the end of the text only: go on from a shorter one
                state = state.link or self.root
                length = state.length
                continue
            token = state.best
            share *= state.counts[token] / state.total
            if token == END or share < least:
                break
            found.append((token, length))
            state, length = self._cut(state.next[token], length + 1)
        return found

    def _cut(self, state: State, length: int) -> tuple[State, int]:
        """Forget the first token of a string that has become too long."""
        if length <= self._longest:
            return state, length
        link = state.link
        return (link if link is not None and link.length >= self._longest else state), self._longest

    def _count(self, token: int) -> None:
        state: State | None = self._end
        while state is not None:
            counts = state.counts
            count = counts[token] = counts.get(token, 0) + 1
            state.total += 1
            if self._recent or count >= counts.get(state.best, 0):
                state.best = token
            state = state.link

    def _extend(self, token: int) -> None:
        new, state = State(self._text.length + 1), self._text
        self._text, before = new, state
        walk: State | None = before
        while walk is not None and token not in walk.next:
            walk.next[token] = new
            walk = walk.link
        if walk is None:
            new.link = self.root
            return
        old = walk.next[token]
        if old.length > walk.length + 1:
            split = old.shortened(walk.length + 1)
            while walk is not None and walk.next.get(token) is old:
                walk.next[token] = split
                walk = walk.link
            old.link, old = split, split
        new.link = old


class Text:
    """One growing text: its automaton, and its match in the corpus.

    Args:
        longest: longest match that is looked for, in tokens.
        recent: draft the latest continuation instead of the most frequent one.
        corpus: the automaton of another text, or ``None``.
    """

    def __init__(self, longest: int, recent: bool, corpus: SuffixAutomaton | None) -> None:
        self._longest, self._recent, self._corpus = longest, recent, corpus
        self._forget()

    def _forget(self) -> None:
        self.own = SuffixAutomaton(self._longest, self._recent)
        self.elsewhere = (self._corpus.root if self._corpus else self.own.root, 0)
        self._read, self._tail = 0, list[int]()

    def extend(self, ids: Sequence[int]) -> None:
        """Read what is new; start again if the text is not the one that was read before."""
        if ids[max(0, self._read - _COMPARED) : self._read] != self._tail:
            self._forget()
        for token in ids[self._read :]:
            self.own.append(token)
            if self._corpus is not None:
                self.elsewhere = self._corpus.follow(*self.elsewhere, token)
        self._read, self._tail = len(ids), list(ids[-_COMPARED:])
