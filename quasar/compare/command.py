"""One comparison from file to report: check everything, then load, run, count and write."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from quasar.compare import report as reporting
from quasar.compare.config import Run
from quasar.compare.differences import classify, find_differences
from quasar.compare.results import SCHEMA_VERSION, Results, RunEnvironment
from quasar.compare.runner import check_lengths, run_all, warm_up
from quasar.compare.scoring import Golds, find_golds, score
from quasar.compare.store import RunFolder, SampleRecord
from quasar.compare.summary import describe_arm, summarise
from quasar.machine import busy_processors, environment
from quasar.pipelines.open_model import OpenModel, open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations


def default_output(run: Run) -> Path:
    """Return a folder that nothing has used yet: ``runs/<file or preset>-<time>``."""
    stem = Path(run.where).stem if run.where.endswith((".yaml", ".yml")) else run.where.split("'")[1]
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def compare(run: Run, output: Path, resume: bool = False, quiet: bool = False) -> Results:
    """Run a comparison.

    Args:
        run: checked already.
        output: the run's folder.
        resume: continue what is in it.
        quiet: nothing on the terminal; the files are written all the same.

    Returns:
        What was written to ``results.json``.

    Raises:
        QuasarError: in one line; samples that were finished stay.
    """
    others = busy_processors()
    golds = None if run.config.scoring is None else find_golds(run.questions, run.config.scoring)
    model, conversations = _look(run, quiet)
    folder = RunFolder(output, run.as_yaml(), resume)
    model.models.measurements = folder.measurements
    pipelines = {arm.name: model.pipeline(arm.composition) for arm in run.arms}
    folder.write_measurements()
    run.registry.run_started(run.as_yaml())
    if run.added and not quiet:
        print(f"Plain arms added as baselines: {', '.join(run.added)}.", file=sys.stderr)

    turns = sum(len(question.turns) for question in run.questions)
    total = turns * len(run.arms) * run.config.repeats
    if len(folder.samples) < total:
        warm_up(run, pipelines, conversations)
    with tqdm(total=total, initial=len(folder.samples), unit="answer", disable=quiet, file=sys.stderr) as bar:

        def done(sample: SampleRecord) -> None:
            bar.set_postfix_str(f"{sample.arm}, question {sample.question_id}", refresh=False)
            bar.update()

        run_all(run, folder, pipelines, conversations, done)
    where = RunEnvironment(
        **asdict(environment(model.models.device)), busy_processors_at_start=others, configuration=run.as_yaml()
    )
    return _finish(run, folder, pipelines, conversations, where, golds, quiet)


def prepare(run: Run, quiet: bool = False) -> tuple[dict[str, Pipeline], Conversations]:
    """Return the run's pipelines, loaded, and its prompts as ids.

    Raises:
        QuasarError: in one line, before a weight is read where that is possible.
    """
    model, conversations = _look(run, quiet)
    return {arm.name: model.pipeline(arm.composition) for arm in run.arms}, conversations


def _look(run: Run, quiet: bool) -> tuple[OpenModel, Conversations]:
    """Find the model and check the prompts against it, its weights still unread."""
    model = open_model(run.config.model, run.registry, run.config.device, quiet)
    conversations = Conversations(model.tokenizer, run.config.chat_template)
    check_lengths(run, conversations, model.max_length)
    return model, conversations


def _finish(
    run: Run,
    folder: RunFolder,
    pipelines: dict[str, Pipeline],
    conversations: Conversations,
    where: RunEnvironment,
    golds: Golds | None,
    quiet: bool,
) -> Results:
    """Count, score, write and show."""
    different = find_differences(run, folder.samples)
    judged = classify(different, run, folder.samples, pipelines, conversations)
    descriptions = {name: describe_arm(pipeline.composition) for name, pipeline in pipelines.items()}
    found = Results(
        schema_version=SCHEMA_VERSION,
        environment=where,
        model=run.config.model,
        baseline=run.baseline,
        added_arms=run.added,
        published=run.config.published,
        arms=summarise(run, folder.samples, descriptions),
        differences=judged,
        scoring=None if golds is None else score(golds, run, folder.samples.values(), quiet),
    )
    run.registry.run_finished(folder.write_results(found, reporting.report(run, found)))
    if not quiet:
        print(reporting.table(found), reporting.exactness(found), reporting.differences(found), sep="\n\n")
        print(reporting.busy(found), end="")
        print(f"\nWritten to {folder.path}: report.md, results.json, samples.jsonl")
    return found
