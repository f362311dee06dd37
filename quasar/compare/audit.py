"""``quasar check --run``: play every arm, and judge each of its tokens by plain decoding with the same verifier.

On a tiny random model this takes seconds and needs no download; on the real model the arm's own text is teacher-forced
through plain decoding. A token is *identical* if plain decoding would have drawn it after the same prefix, a *near-tie*
if another one leads by less than the drift between row counts can close, and a *fault* otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from quasar.compare.config import Arm, Run
from quasar.compare.replay import drift, replay, uniform_steps
from quasar.core.errors import QuasarError
from quasar.core.providers import ChatCodec
from quasar.core.requests import Request
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations
from quasar.testing.random_llama import VOCAB, RandomLlamas

WIDTHS = (2, 4, 8)
"""Row counts whose drift is measured."""

_TINY_PROMPTS, _TINY_TOKENS = 6, 48


@dataclass(frozen=True, slots=True)
class Fault:
    """A token that differs from plain decoding's by more than the drift explains.

    Attributes:
        prompt: the prompt's name.
        place: index of the new token.
        gap: distance of its score to the largest there.
    """

    prompt: str
    place: int
    gap: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one arm.

    Attributes:
        arm: its name.
        tokens: how many were judged.
        near_ties: of these, how many differ by less than the drift explains.
        faults: of these, those that differ by more.
        drift: largest drift of the arm's verifier, for steps like the arm's own and by row count.
        skipped: why the arm was not judged, or ``None``.
    """

    arm: str
    tokens: int = 0
    near_ties: int = 0
    faults: tuple[Fault, ...] = ()
    drift: Mapping[str, float] | None = None
    skipped: str | None = None

    def line(self) -> str:
        """One line for the terminal."""
        if self.skipped is not None or self.drift is None:
            return f"{self.arm}: not judged, {self.skipped}"
        identical = self.tokens - self.near_ties - len(self.faults)
        drifts = ", ".join(f"{way} {value:.2g}" for way, value in self.drift.items())
        place = "".join(f"; first at prompt {f.prompt}, token {f.place}, gap {f.gap:.3g}" for f in self.faults[:1])
        return (
            f"{self.arm}: {identical} identical, {self.near_ties} near-ties, {len(self.faults)} faults "
            f"of {self.tokens} tokens{place} (drift: {drifts})"
        )


class _Bytes:
    """Stands in for a tokenizer where there is no text: one letter an id."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(0x100 + token) for token in ids)


def audit_tiny(run: Run) -> Iterator[Verdict]:
    """Judge every arm on a tiny random model, prompts with repetition in them."""
    models, generator = RandomLlamas(run.registry.backends()), random.Random(0)
    motifs = [[generator.randrange(VOCAB) for _ in range(generator.randrange(3, 9))] for _ in range(_TINY_PROMPTS)]
    prompts = {f"tiny {i}": motif * 3 + motif[:2] for i, motif in enumerate(motifs)}
    plain = {"stop": (), "suppress_tokens": (), "bad_words_ids": (), "stop_token_ids": (), "logit_bias": ()}
    sampling = run.sampling.model_copy(update={"max_new_tokens": _TINY_TOKENS, **plain})
    for arm in run.arms:
        try:
            pipeline = Pipeline(arm.composition, models, cast(ChatCodec, _Bytes()), ())  # prompts are ids already
        except QuasarError as error:
            where = f"arm '{arm.name}' on a tiny random model ('--model' takes the file's own)"
            raise type(error)(f"{where}: {error}") from error
        requests = [r for name, ids in prompts.items() for r in pipeline.requests([ids], sampling, [name])]
        yield _judge(arm, pipeline, requests)


def audit_real(run: Run, pipelines: Mapping[str, Pipeline], conversations: Conversations) -> Iterator[Verdict]:
    """Judge every arm on the run's own model and the first turns of its prompts."""
    for arm in run.arms:
        pipeline = pipelines[arm.name]
        requests = [
            request
            for question in run.questions
            for request in pipeline.requests(
                [conversations.ids(question, [])], run.sampling, [f"{question.question_id}/0"]
            )
        ]
        yield _judge(arm, pipeline, requests)


def _judge(arm: Arm, pipeline: Pipeline, requests: Sequence[Request]) -> Verdict:
    if not arm.composition.same_text:
        return Verdict(arm.name, skipped="its text is not plain decoding's by construction")
    verifier = arm.composition.verifier
    generations = [pipeline.run([request])[0] for request in requests]
    drifts: dict[str, float] = {}
    tokens, near_ties, faults = 0, 0, []
    for request, done in zip(requests, generations, strict=True):
        output = done.token_ids
        alone = replay(verifier, request, output, uniform_steps(len(output), 1))
        gaps = alone.amax(dim=-1) - alone[range(len(output)), list(output)]
        tokens += len(output)
        if drifts and not bool(gaps.any()):
            continue
        own = [(step.committed, 1 + step.drafted) for step in done.decode_steps]
        ways = {"own steps": own, **{f"{width} rows": uniform_steps(len(output), width) for width in WIDTHS}}
        for way, steps in ways.items():
            moved = float(drift(alone, [replay(verifier, request, output, steps)]).max())
            drifts[way] = max(drifts.get(way, 0.0), moved)
        for place in gaps.nonzero()[:, 0].tolist():
            # Rounding differs from place to place; what was seen anywhere so far can happen here.
            if float(gaps[place]) <= 2 * max(drifts.values()):
                near_ties += 1
            else:
                faults.append(Fault(request.prompt_id, place, float(gaps[place])))
    return Verdict(arm.name, tokens, near_ties, tuple(faults), drifts)
