"""A pipeline as a drafter: cheap verification in front of exact verification, to any depth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from quasar.core.batch import Batch
from quasar.core.clock import device_clock
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.context import Context
from quasar.core.description import Description, describe_part
from quasar.core.engine import Engine
from quasar.core.errors import CompositionError
from quasar.core.providers import ModelProvider
from quasar.core.requests import Request
from quasar.core.sampling import SamplingParams
from quasar.core.stopping import NewTokens, StopRule
from quasar.core.types import Draft


class Cascade(Drafter):
    """Let a drafter, a cheaper verifier and an acceptor write a block, which the verifier outside then checks.

    The draft is a chain, and its distribution is the inner verifier's, whatever the inner drafter does: so it is exact
    under any verifier that accepts by that distribution. A block ends at ``num_speculative_tokens``, at the end of the
    text, or on doubt. Doubt is judged by the inner model at temperature 1 and before the processors. It may look at the
    distribution of a place before a token is drawn there, or at the token if that is kept; dropping a token because of
    itself is biased.

    Source: hierarchical speculation as in TriForce (Sun et al., arXiv 2404.11912), for any pipeline and to any depth.
    """

    name = "cascade"
    second_names = ("pipeline",)
    drafts_by = "sampled"

    class Config(Drafter.Config):
        """Options."""

        drafter: Drafter = Field(examples=["ngram"], description="Who proposes to the inner verifier.")
        verifier: Verifier = Field(
            examples=["int8"], description="Who checks that, and whose distribution the block follows."
        )
        acceptor: Acceptor = Field(
            "stochastic", validate_default=True, description="Who decides inside; has to be exact."
        )
        num_speculative_tokens: int = Field(8, ge=1, le=256, description="Most tokens of a block.")
        min_margin: float = Field(
            0.0, ge=0, le=1, description="End before a place whose two likeliest tokens are closer than this."
        )
        max_entropy: float | None = Field(
            None, ge=0, description="End before a place whose distribution has a larger entropy, in nats."
        )
        min_probability: float = Field(0.0, ge=0, le=1, description="End after a token that was less likely than this.")

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        drafter, acceptor = self.config.drafter, self.config.acceptor
        acceptor.refuse_drafts(drafter)
        if not acceptor.is_exact():
            raise CompositionError(
                f"acceptor '{acceptor.name}' is relaxed, so the distribution of a block would not be known; inside a "
                "cascade take 'stochastic'."
            )
        if acceptor.greedy_only:
            raise CompositionError(
                f"acceptor '{acceptor.name}' serves temperature 0 only; inside a cascade take 'stochastic', which is "
                "the same there."
            )

    _clock: Callable[[], float] = staticmethod(time.perf_counter)

    def load(self, models: ModelProvider) -> None:
        """Load the parts."""
        super().load(models)
        self._clock = device_clock(models.device)

    def attach_verifier(self, verifier: Verifier) -> None:
        """Let the inner drafter meet the inner verifier: that is who checks it."""
        self.config.drafter.attach_verifier(self.config.verifier)

    def describe(self) -> Description:
        """What the parts say."""
        parts = {"drafter": self.config.drafter, "verifier": self.config.verifier}
        return Description(details={kind: describe_part(part) for kind, part in parts.items()})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return the chain that the inner pipeline emits."""
        engine, inner = self._inner(context)
        inner.begin(context, [min(limit, self.config.num_speculative_tokens) for limit in budget])
        while not inner.finished:
            inner.collect(engine.step(inner))
        return inner.draft(context)

    def prefill(self, context: Context) -> None:
        """Let the inner verifier and drafter read the prompts."""
        engine, inner = self._inner(context)
        inner.begin(context, [row.sampling.max_new_tokens for row in context.rows])
        engine.prefill(inner)

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the inner caches."""
        inner = self._inner(context)[1].context
        return sum(part.peak_bytes(inner) for part in self.parts())

    def _inner(self, context: Context) -> tuple[Engine, InnerBatch]:
        def make() -> tuple[Engine, InnerBatch]:
            config, level = self.config, context.level + 1
            engine = Engine(config.drafter, config.verifier, config.acceptor, clock=self._clock, level=level)
            return engine, InnerBatch(context, config)

        return context.scratch(self, make)


class InnerBatch(Batch):
    """The inner pipeline's batch: it lives as long as the outer one, and begins anew from the outer text at every step.

    Args:
        outer: the context of the pipeline around it.
        config: verifier, acceptor and doubt.
    """

    def __init__(self, outer: Context, config: Cascade.Config) -> None:
        # Stop strings are the outer pipeline's to find: a block that goes on behind one is cut there.
        quiet = {"stop": (), "logprobs": False}
        requests = [
            Request(
                row.token_ids, row.sampling.model_copy(update=quiet), row.prompt_id, row.sample_index, row.processors
            )
            for row in outer.rows
        ]
        couples, level = config.acceptor.couples, outer.level + 1
        super().__init__(requests, config.verifier, outer.eos_ids, None, level, couples)
        rows = zip(self.context.rows, outer.rows, strict=True)
        self.context.rows = tuple(replace(own, prompt_length=row.prompt_length) for own, row in rows)
        self.context.inner_steps = outer.inner_steps
        self._config = config
        self._distributions: list[list[Tensor]] = []

    def begin(self, outer: Context, sizes: Sequence[int]) -> None:
        """Go on from the outer text.

        Args:
            outer: the context of the pipeline around it.
            sizes: most tokens to emit, per row.
        """
        self.context.streams = outer.streams.inner(self.context.level, outer.committed(), outer.coupled)
        longest = self._config.verifier.max_length()
        for request, own, row, size in zip(self.running, self.context.rows, outer.rows, sizes, strict=True):
            sampling = own.sampling.model_copy(update={"max_new_tokens": size})
            rule = UntilDoubt(sampling, outer.eos_ids, len(row.token_ids), longest, self._config)
            request.begin(row.token_ids, rule)
        self._distributions = [[] for _ in sizes]

    def collect(self, commits: Sequence[NewTokens]) -> None:
        """Keep the distribution of every token that a step added."""
        for new in commits:
            if new.verification.certain is None:
                self._distributions[new.row].append(new.verification.probs[new.row, new.slots])

    def draft(self, outer: Context) -> Draft:
        """Return what was emitted since ``begin``, as chains with their distributions."""
        emitted = [request.output for request in self.running]
        width = max(map(len, emitted))
        if not width:
            return Draft.empty(len(emitted))
        if all(row.sampling.temperature == 0 for row in outer.rows):
            # A one-hot distribution is a point mass, and a trial of one costs no pass over the vocabulary.
            chains = Draft.chains(emitted)
            assert self.context.verification is not None
            no_distributions = torch.empty(len(emitted), 0, self.context.verification.vocab_size)
            return replace(chains, trials=replace(chains.explicit_trials(), table=no_distributions))
        first = next(distribution for distributions in self._distributions for distribution in distributions)
        table = first.new_zeros((len(emitted), width, first.shape[-1]))
        for row, distributions in enumerate(self._distributions):
            if distributions:
                table[row, : len(emitted[row])] = torch.cat(distributions)
        return Draft.chains(emitted, table)


class UntilDoubt(StopRule):
    """Ends a block with its text, or earlier where the inner verifier is in doubt.

    Args:
        sampling: ``max_new_tokens`` is the length of the block.
        eos_ids: ids that end a text.
        length: tokens of the outer text.
        max_length: longest sequence of the inner model, ``None`` for no limit.
        doubt: the options that say what doubt is.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        eos_ids: Sequence[int],
        length: int,
        max_length: int | None,
        doubt: Cascade.Config,
    ) -> None:
        super().__init__(sampling, eos_ids, length, max_length, None)
        self._doubt = doubt

    def cut(self, output: Sequence[int], new: NewTokens) -> tuple[int, str | None]:
        """Return how many of the ``new`` tokens are kept, and why the block ends, if it does."""
        count, reason = super().cut(output, new)
        sure = self._sure(new.first(count))
        return (count, reason) if sure is None else (sure, "doubt")

    def _sure(self, new: NewTokens) -> int | None:
        """Return how many tokens the first doubt leaves, ``None`` if there is no doubt."""
        doubt = self._doubt
        if not (doubt.min_margin or doubt.max_entropy is not None or doubt.min_probability):
            return None
        distributions, count = new.logits().softmax(dim=-1), len(new.token_ids)  # [tokens, vocab]
        unsure = torch.zeros(count, dtype=torch.bool, device=distributions.device)
        if doubt.min_margin:
            best, second = distributions.topk(2, dim=-1).values.unbind(dim=-1)
            unsure |= best - second < doubt.min_margin
        if doubt.max_entropy is not None:
            unsure |= torch.special.entr(distributions).sum(dim=-1) > doubt.max_entropy
        unlikely = distributions[range(count), new.token_ids] < doubt.min_probability
        before = [place for place, found in enumerate(unsure.tolist()) if found]
        after = [place + 1 for place, found in enumerate(unlikely.tolist()) if found]
        return min([*before, *after], default=None)
