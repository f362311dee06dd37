"""Run every prompt through every arm: arms interleaved, prompts paired, each answer on disk before the next."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from quasar.compare.config import Arm, Run
from quasar.compare.levels import count_levels
from quasar.compare.store import RunFolder, SampleRecord
from quasar.core.errors import CapacityError
from quasar.core.records import Generation, StepRecord
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations
from quasar.prompts.questions import Question

_WARM_UP_TOKENS = 8


def check_lengths(run: Run, conversations: Conversations, max_length: int | None) -> None:
    """Refuse prompts that cannot fit the model, before a weight is loaded.

    Raises:
        CapacityError: naming the question.
    """
    if max_length is None:
        return
    for question in run.questions:
        last = len(question.turns) - 1
        # Later turns hold answers that nobody has seen yet; each is as long as it may get at the worst.
        length = len(conversations.ids(question, [""] * last)) + last * run.sampling.max_new_tokens
        if length >= max_length:
            grown = f" (with {last} answers of up to {run.sampling.max_new_tokens})" if last else ""
            raise CapacityError(
                f"data: question {question.question_id!r} has {length} tokens{grown}, and model "
                f"'{run.config.model}' holds {max_length}; shorten the prompt or lower max_new_tokens."
            )


def schedule(run: Run) -> Iterator[tuple[int, Question, Arm]]:
    """Yield (repeat, question, arm): all arms of a prompt in a row, the first one another each time."""
    for repeat in range(run.config.repeats):
        for number, question in enumerate(run.questions):
            turn = (number + repeat) % len(run.arms)
            for arm in (*run.arms[turn:], *run.arms[:turn]):
                yield repeat, question, arm


def warm_up(run: Run, pipelines: dict[str, Pipeline], conversations: Conversations) -> None:
    """Let every arm answer the first prompt once, uncounted: caches fill, kernels are chosen."""
    sampling = run.sampling.model_copy(update={"max_new_tokens": _WARM_UP_TOKENS, "stop": ()})
    for pipeline in pipelines.values():
        ids = conversations.ids(run.questions[0], [])
        pipeline.run(pipeline.requests([ids], sampling, ["warm-up"], 0))


def run_all(
    run: Run,
    folder: RunFolder,
    pipelines: dict[str, Pipeline],
    conversations: Conversations,
    done: Callable[[SampleRecord], None],
) -> None:
    """Answer what is not answered yet.

    Args:
        run: what to run.
        folder: where samples are, and go.
        pipelines: by arm.
        conversations: makes prompts.
        done: called after every sample that was generated now.
    """
    subscriber = run.registry.step_subscriber()
    for repeat, question, arm in schedule(run):
        answers: list[str] = []
        for turn in range(len(question.turns)):
            found = folder.samples.get((question.question_id, turn, arm.name, repeat))
            if found is None:
                ids = conversations.ids(question, answers)
                on_step = None if subscriber is None else _for_arm(subscriber, arm.name)
                found = _answer(run, question, turn, arm.name, repeat, ids, pipelines[arm.name], on_step)
                folder.add(found)
                done(found)
            answers.append(found.text)


def _for_arm(subscriber: Callable[[str, StepRecord], None], arm: str) -> Callable[[StepRecord], None]:
    return lambda record: subscriber(arm, record)


def _answer(
    run: Run,
    question: Question,
    turn: int,
    arm: str,
    repeat: int,
    ids: Sequence[int],
    pipeline: Pipeline,
    on_step: Callable[[StepRecord], None] | None,
) -> SampleRecord:
    times: list[float] = []
    requests = pipeline.requests([ids], run.sampling, [f"{question.question_id}/{turn}"], repeat)
    started = time.perf_counter()
    [generation] = pipeline.run(requests, lambda *_: times.append(time.perf_counter()), on_step)
    return _record(question, turn, arm, repeat, run.sampling.seed, ids, generation, pipeline, started, times)


def _record(
    question: Question, turn: int, arm: str, repeat: int, seed: int, prompt: Sequence[int], generation: Generation,
    pipeline: Pipeline, started: float, times: Sequence[float],
) -> SampleRecord:  # fmt: skip
    """Count one generation; the step times of prefill are left out of every decode sum."""
    decode = generation.decode_steps
    deepest = max((step.depth for step in decode), default=0)
    prefill = generation.steps[0]
    return SampleRecord(
        question_id=question.question_id,
        task=question.task,
        turn=turn,
        arm=arm,
        repeat=repeat,
        seed=seed,
        prompt_hash=hashlib.blake2b(str(list(prompt)).encode(), digest_size=8).hexdigest(),
        num_prompt_tokens=len(prompt),
        token_ids=generation.token_ids,
        num_tokens=len(generation.token_ids),
        decode_tokens=sum(step.committed for step in decode),
        text=pipeline.tokenizer.decode(generation.token_ids),
        finish_reason=generation.finish_reason,
        num_steps=generation.num_steps,
        num_drafted=generation.num_drafted,
        num_accepted=generation.num_accepted,
        num_drafted_steps=sum(step.drafted > 0 for step in decode),
        committed=tuple(step.committed for step in decode),
        drafted=tuple(step.drafted for step in decode),
        drafted_at=tuple(sum(step.depth > depth for step in decode) for depth in range(deepest)),
        accepted_at=tuple(sum(step.accepted > depth for step in decode) for depth in range(deepest)),
        rows_forwarded=sum(step.positions_forwarded for step in decode),
        seconds_prefill=prefill.seconds_draft + prefill.seconds_verify + prefill.seconds_accept,
        seconds_to_first_token=times[0] - started,
        seconds_decode=times[-1] - times[0],
        seconds_draft=sum(step.seconds_draft for step in decode),
        seconds_verify=sum(step.seconds_verify for step in decode),
        seconds_accept=sum(step.seconds_accept for step in decode),
        cache_bytes=generation.peak_bytes,
        levels=count_levels(generation.inner_steps),
        layers_forwarded=sum(step.layers_forwarded for step in decode),
    )
