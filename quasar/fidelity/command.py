"""``quasar fidelity``: compare the distributions of two verifiers on the reference's own text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from quasar.core.config import PipelineSpec, parse_yaml, validate
from quasar.core.description import description_of
from quasar.core.errors import CapacityError, ConfigError
from quasar.core.sampling import SamplingParams
from quasar.fidelity.measure import Continuation, Differences, differences, layer_errors, summary, verifier_logits
from quasar.fidelity.report import table
from quasar.fidelity.results import Fidelity, Side, lay_out
from quasar.machine import environment
from quasar.pipelines.composition import compose
from quasar.pipelines.open_model import OpenModel, open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations
from quasar.prompts.questions import Question, load_questions

_TOGETHER = 8
"""Prompts that the reference continues as one batch."""

Prompts = Sequence[tuple[str, list[int]]]


def run(arguments: argparse.Namespace) -> None:
    """Measure as the command line asks, and print a table or JSON.

    Raises:
        QuasarError: in one line.
    """
    if arguments.max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens: must be at least 1, got {arguments.max_new_tokens}.")
    registry = arguments.registry.with_files([Path(file) for file in arguments.plugin])
    parts = {
        flag: compose(
            validate(PipelineSpec, {"drafter": "none", "verifier": parse_yaml(getattr(arguments, flag), f"--{flag}")},
                     f"--{flag}"),
            registry, SamplingParams(), f"--{flag}",
        )
        for flag in ("reference", "verifier")
    }  # fmt: skip
    questions = choose_questions(arguments.data, arguments.limit)
    model = open_model(arguments.model, registry, arguments.device, arguments.quiet)
    prompts = as_ids(questions, Conversations(model.tokenizer, "off" if arguments.no_chat else "auto"))
    _check_lengths(prompts, arguments.max_new_tokens, model)
    reference, other = (model.pipeline(parts[flag]) for flag in ("reference", "verifier"))
    found = fidelity(
        reference, other, prompts, max_new_tokens=arguments.max_new_tokens, layers=arguments.layers,
        quiet=arguments.quiet,
    )  # fmt: skip
    if arguments.json:
        print(json.dumps(lay_out(found, arguments.model, arguments.data, environment(model.models.device)), indent=2))
    else:
        print(table(arguments.model, found))


def choose_questions(sources: Sequence[str], limit: int | None) -> list[tuple[str, Question]]:
    """Return prompts with their tasks: the file's own, or the name of the file where there are several.

    Args:
        sources: ``bundled`` or files.
        limit: prompts of each task, evenly spread over it, so that a file sorted by kind is not seen from one side.

    Raises:
        ConfigError: a file is wrong, or the limit.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: must be at least 1, got {limit}.")
    tasks: dict[str, list[Question]] = {}
    for source in sources:
        for question in load_questions(source):
            tasks.setdefault(question.task if len(sources) == 1 else Path(source).stem, []).append(question)
    return [
        (task, questions[number * len(questions) // count])
        for task, questions in tasks.items()
        for count in [min(limit or len(questions), len(questions))]
        for number in range(count)
    ]


def as_ids(questions: Sequence[tuple[str, Question]], conversations: Conversations) -> Prompts:
    """Return the first turns as ids."""
    return [(task, conversations.ids(question, [])) for task, question in questions]


def _check_lengths(prompts: Prompts, new: int, model: OpenModel) -> None:
    longest = max(len(ids) for _, ids in prompts)
    if model.max_length is not None and longest + new > model.max_length:
        raise CapacityError(
            f"--data: the longest prompt has {longest} tokens, and with --max-new-tokens {new} that is more than the "
            f"{model.max_length} that model '{model.name}' holds; ask for fewer, or leave long prompts out."
        )


def fidelity(
    reference: Pipeline,
    other: Pipeline,
    prompts: Prompts,
    *,
    max_new_tokens: int = 64,
    layers: bool = False,
    quiet: bool = True,
) -> Fidelity:
    """Compare two pipelines' verifiers, teacher-forced on greedy continuations by the reference.

    Args:
        reference: continues the prompts, and gives the distributions that the other's are measured against.
        other: is measured.
        prompts: task and ids of each.
        max_new_tokens: longest continuation; it ends at an end of text too.
        layers: add the error of every decoder layer, on the first prompt of each task.
        quiet: no progress on standard error.

    Raises:
        ConfigError: a verifier does not run a language model of ours.
        UnsupportedModelError: ``layers`` for a model whose layers are not a plain stack.
    """
    models = [_model(pipeline) for pipeline in (reference, other)]
    verifiers = [pipeline.composition.verifier for pipeline in (reference, other)]
    with tqdm(desc="prompts continued", total=len(prompts), disable=quiet, file=sys.stderr) as bar:
        texts = continuations(reference, prompts, max_new_tokens, bar.update)
    tasks: dict[str, list[Differences]] = {}
    for text in tqdm(texts, desc="prompts compared", disable=quiet, file=sys.stderr):
        distributions = [verifier_logits(*each, text) for each in zip(models, verifiers, strict=True)]
        tasks.setdefault(text.task, []).append(differences(distributions[0], distributions[1]))
    errors = None
    if layers:
        first = {text.task: text for text in reversed(texts)}
        columns = zip(*(layer_errors(models[0], models[1], text) for text in first.values()), strict=True)
        errors = tuple(sum(column) / len(column) for column in columns)
    return Fidelity(
        verifier=_side(other),
        reference=_side(reference),
        summary=summary([each for compared in tasks.values() for each in compared]),
        tasks={task: summary(compared) for task, compared in tasks.items()},
        layers=errors,
    )


def _model(pipeline: Pipeline) -> Any:
    verifier = pipeline.composition.verifier
    model = verifier.language_model()
    if model is None:
        raise ConfigError(f"fidelity: verifier '{verifier.name}' has no language model to compare; name one that has.")
    return model


def _side(pipeline: Pipeline) -> Side:
    verifier = pipeline.composition.verifier
    return Side(verifier.as_yaml(), description_of(verifier), verifier.reference())


def continuations(
    pipeline: Pipeline, prompts: Prompts, new: int, progress: Callable[[int], object] = lambda _: None
) -> list[Continuation]:
    """Return greedy continuations, in the order of the prompts.

    Args:
        pipeline: continues.
        prompts: task and ids of each.
        new: longest continuation, in tokens.
        progress: called with the number of prompts that were continued, batch by batch.
    """
    sampling = SamplingParams(temperature=0.0, max_new_tokens=new)
    texts = []
    for start in range(0, len(prompts), _TOGETHER):
        part = prompts[start : start + _TOGETHER]
        names = [str(number) for number in range(start, start + len(part))]
        done = pipeline.run(pipeline.requests([ids for _, ids in part], sampling, names))
        texts += [
            Continuation(task, tuple(ids), tuple(each.token_ids))
            for (task, ids), each in zip(part, done, strict=True)
        ]  # fmt: skip
        progress(len(part))
    return texts
