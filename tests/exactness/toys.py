"""Table language models and drafters over them, vectorised over the rows of a batch.

A table language model has three or four tokens, and its next-token logits are a function of the last two tokens. The
law of whole texts can then be enumerated, and one call of the real engine yields thousands of samples: every row is
the same prompt with another ``sample_index``.

A drafter is described by *twigs*, numbered from 1 in the order in which they are drawn and tried, level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quasar.acceptors.rules.exact import accept_exactly
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.context import Context, LogitsProcessor, TokenView
from quasar.core.engine import Engine, Request
from quasar.core.sampling import SamplingParams
from quasar.core.streams import draw
from quasar.core.types import POINT_MASS, Draft, Trials, Verification

PROMPT = (0, 1)
Text = tuple[int, ...]


def random_table(vocab: int, seed: int, sharpness: float = 1.0) -> Tensor:
    """Logits after every pair of tokens. ``[vocab, vocab, vocab]``"""
    generator = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(vocab, vocab, vocab, generator=generator)


def same_everywhere(law: Sequence[float]) -> Tensor:
    """The table of a model that gives one law after every text."""
    return torch.tensor(law).log().expand(len(law), len(law), len(law))


def last_two(context: Context) -> Tensor:
    """The last two committed tokens of every row. ``[batch, 2]``"""
    return torch.tensor([row.token_ids[-2:] for row in context.rows])


def at_slots(table: Tensor, last: Tensor, draft: Draft) -> Tensor:
    """What the table says after every slot, given the last two committed tokens. ``[batch, nodes + 1, vocab]``"""
    tokens = torch.cat([last[:, 1:], draft.token_ids], dim=1)
    before = torch.cat([last[:, :1], tokens.gather(1, draft.parents)], dim=1)
    return table[before, tokens]


class TableVerifier(Verifier):
    """A target model that is a table."""

    name = "table"
    precision = "full"

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table

    def vocab_size(self) -> int:
        return self.table.shape[-1]

    def verify(self, context: Context, draft: Draft) -> Verification:
        logits = at_slots(self.table, last_two(context), draft)
        return Verification(draft, context.distributions(logits, draft), logits)


@dataclass(frozen=True)
class Twig:
    """One trial: where it grows (0 is the committed text), and the table whose law its token is drawn from.

    A point mass (``sampled=False``) takes the ``rank``-th most likely token of that law.
    """

    parent: int
    table: int = 0
    sampled: bool = True
    rank: int = 0


def point(parent: int, rank: int = 0) -> Twig:
    return Twig(parent, sampled=False, rank=rank)


@dataclass
class Growth:
    """A tree that is being drawn; equal siblings are not yet merged into one node."""

    tokens: Tensor  # [batch, twigs]
    parents: Tensor  # [batch, twigs], the parent's home
    home: Tensor  # [batch, twigs + 1], slot of every twig's node; that of an equal earlier sibling if there is one
    laws: Tensor  # [batch, twigs, vocab]


class TreeDrafter(Drafter):
    """Draws the twigs one after another; equal siblings share one node and keep both trials.

    Args:
        tables: logits of the draft models.
        twigs: what is drafted, level by level.
        ragged: draft less deeply, or not at all, after some texts.
    """

    name = "twigs"

    def __init__(self, tables: Sequence[Tensor], twigs: Sequence[Twig], ragged: bool = False) -> None:
        super().__init__()
        self.tables, self.twigs, self.ragged = tables, twigs, ragged
        self.drafts_by = "sampled" if any(twig.sampled for twig in twigs) else "point_mass"
        self.depths = [0]
        for twig in twigs:
            self.depths.append(self.depths[twig.parent] + 1)

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        growth = self.grow(context)
        depths = torch.tensor(self.depths[1:])
        wanted = depths <= torch.tensor(self.reach(context, budget))[:, None]  # [batch, twigs]
        return self.finish(self.prune(growth, wanted))

    def reach(self, context: Context, budget: Sequence[int]) -> list[int]:
        """How deeply each row is drafted: a function of its committed text only."""
        if not self.ragged:
            return list(budget)
        return [
            min(limit, (sum(row.token_ids[-2:]) + len(row.token_ids)) % (max(self.depths) + 1))
            for row, limit in zip(context.rows, budget, strict=True)
        ]

    def grow(self, context: Context) -> Growth:
        batch, count, vocab = context.batch, len(self.twigs), self.tables[0].shape[-1]
        integers = torch.zeros((3, batch, count + 1), dtype=torch.int64)
        growth = Growth(integers[0, :, 1:], integers[1, :, 1:], integers[2], torch.zeros((batch, count, vocab)))
        rows, committed, last = torch.arange(batch), context.committed(), last_two(context)
        for index, twig in enumerate(self.twigs):
            drawn = Draft(growth.tokens[:, :index], growth.parents[:, :index], torch.full((batch,), index))
            parent = growth.home[:, twig.parent]
            law = context.distributions(at_slots(self.tables[twig.table], last, drawn), drawn)[rows, parent]
            law = self.law_of_twig(law, growth, index, parent)
            if twig.sampled:
                token = self.pick(context, law, index, committed)
            else:
                token = law.argsort(dim=-1, descending=True, stable=True)[:, twig.rank]
            growth.tokens[:, index], growth.parents[:, index] = token, parent
            growth.laws[:, index] = self.stated_law(law, context, drawn, parent, twig)
            growth.home[:, index + 1] = index + 1
            for earlier in range(index):
                equal = (growth.parents[:, earlier] == parent) & (growth.tokens[:, earlier] == token)
                home = torch.minimum(growth.home[:, earlier + 1], growth.home[:, index + 1])
                growth.home[:, index + 1] = torch.where(equal, home, growth.home[:, index + 1])
        return growth

    def law_of_twig(self, law: Tensor, growth: Growth, index: int, parent: Tensor) -> Tensor:
        """The law that twig ``index`` (counted from 0) is drawn from."""
        return law

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        """Draw a token from ``law``."""
        keys = context.draft_keys(torch.full((context.batch, 1), index), torch.tensor(self.depths[index + 1] - 1))
        return draw(law, keys[:, 0])

    def stated_law(self, law: Tensor, context: Context, drawn: Draft, parent: Tensor, twig: Twig) -> Tensor:
        """The law that the draft claims."""
        return law

    def prune(self, growth: Growth, wanted: Tensor) -> Draft:
        """Keep wanted nodes, each once, and point all trials at the nodes that they live in now."""
        batch, count = wanted.shape
        own = growth.home[:, 1:] == torch.arange(1, count + 1)
        keep = wanted & own
        order = (~keep).to(torch.int8).argsort(dim=1, stable=True)
        slots = torch.cat([torch.zeros((batch, 1), dtype=torch.int64), keep.cumsum(dim=1)], dim=1)
        used = torch.arange(count) < keep.sum(dim=1, keepdim=True)
        tokens = growth.tokens.gather(1, order) * used
        parents = slots.gather(1, growth.parents).gather(1, order) * used
        draft = Draft(tokens, parents, keep.sum(dim=1))
        if self.drafts_by == "point_mass":
            return draft
        nodes = torch.where(wanted, slots.gather(1, growth.home[:, 1:]), 0)
        sampled = torch.tensor([twig.sampled for twig in self.twigs])
        laws = torch.where(sampled, torch.arange(count), POINT_MASS).expand(batch, count)
        return replace(draft, trials=Trials(nodes, laws, growth.laws))

    def finish(self, draft: Draft) -> Draft:
        return draft


class WithoutReplacement(TreeDrafter):
    """Each sampled sibling is drawn from what its earlier siblings left of the law."""

    def law_of_twig(self, law: Tensor, growth: Growth, index: int, parent: Tensor) -> Tensor:
        for earlier in range(index):
            taken = growth.parents[:, earlier, None] == parent[:, None]
            left = law.scatter(1, growth.tokens[:, earlier, None], 0.0)
            law = torch.where(taken, left / left.sum(dim=1, keepdim=True), law)
        return law


class NestedPipeline(Drafter):
    """Drafter and verifier of a level of its own, run until they have emitted ``length`` tokens.

    Its draft is a chain whose law is the inner verifier's, whatever the inner drafter does.
    """

    name = "nested"
    drafts_by = "sampled"

    def __init__(self, drafter: Drafter, verifier: Verifier, length: int) -> None:
        super().__init__()
        self.drafter, self.verifier, self.length = drafter, verifier, length

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        wanted = torch.tensor(budget).clamp_max(self.length)
        texts = [list(row.token_ids) for row in context.rows]
        starts = [len(text) for text in texts]
        laws = torch.zeros((context.batch, self.length, self.verifier.vocab_size()))
        while bool((self._emitted(texts, starts) < wanted).any()):
            views = [replace(row, token_ids=TokenView(text)) for row, text in zip(context.rows, texts, strict=True)]
            inner = Context(tuple(views), context.streams, context.level + 1)
            emitted = self._emitted(texts, starts)
            draft = self.drafter.propose(inner, (wanted - emitted - 1).clamp_min(0).tolist())
            verification = self.verifier.verify(inner, draft)
            acceptance = accept_exactly(verification, inner)
            for row in (emitted < wanted).nonzero()[:, 0].tolist():
                path = acceptance.path[row, : int(acceptance.num_accepted[row])].tolist()
                new = [*(int(draft.token_ids[row, slot - 1]) for slot in path), int(acceptance.next_token[row])]
                first = int(emitted[row])
                laws[row, first : first + len(new)] = verification.probs[row, [0, *path]]
                texts[row].extend(new)
        emitted = [text[start:] for text, start in zip(texts, starts, strict=True)]
        return Draft.chains(emitted, laws[:, : max(map(len, emitted))])

    @staticmethod
    def _emitted(texts: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        return torch.tensor([len(text) - start for text, start in zip(texts, starts, strict=True)])


def requests(
    samples: Sequence[int],
    sampling: SamplingParams,
    processors: tuple[LogitsProcessor, ...] = (),
    prompt: Sequence[int] = PROMPT,
) -> list[Request]:
    """The same prompt once for every sample index."""
    return [Request(prompt, sampling, "toy", sample, processors) for sample in samples]


def texts(
    drafter: Drafter, verifier: Verifier, acceptor: Acceptor, batch: list[Request], eos: int | None
) -> list[Text]:
    """What the real engine commits for a batch."""
    engine = Engine(drafter, verifier, acceptor, eos_ids=() if eos is None else (eos,))
    return [done.token_ids for done in engine.generate(batch)]
