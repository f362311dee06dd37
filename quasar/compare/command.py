"""One comparison from file to report: check everything, then load, run, count and write."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from quasar.compare import report as reporting
from quasar.compare.config import Run
from quasar.compare.differences import classify, find_differences
from quasar.compare.results import results
from quasar.compare.runner import check_lengths, run_all, warm_up
from quasar.compare.scoring import Golds, find_golds, score
from quasar.compare.store import RunFolder, SampleRecord
from quasar.machine import busy_processors, environment
from quasar.pipelines.open_model import OpenModel, open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations


def default_output(run: Run) -> Path:
    """Return a folder that nothing has used yet: ``runs/<file or preset>-<time>``."""
    stem = Path(run.where).stem if run.where.endswith((".yaml", ".yml")) else run.where.split("'")[1]
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def compare(run: Run, output: Path, resume: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Run a comparison.

    Args:
        run: checked already.
        output: the run's folder.
        resume: continue what is in it.
        quiet: nothing on the terminal; the files are written all the same.

    Returns:
        What ``results.json`` holds.

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
    where = {**environment(model.models.device), "busy_processors_at_start": others}
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
    where: dict[str, Any],
    golds: Golds | None,
    quiet: bool,
) -> dict[str, Any]:
    """Count, score, write and show."""
    different = find_differences(run, folder.samples)
    classify(different, run, folder.samples, pipelines, conversations)
    parts = {name: pipeline.composition for name, pipeline in pipelines.items()}
    descriptions = {
        name: {
            **each.verifier.describe(),
            "drafter": each.drafter.describe(),
            "arm_weight_bytes": sum((each.verifier.storages() | each.drafter.storages()).values()),
        }
        for name, each in parts.items()
    }
    found = results(run, folder.samples, descriptions, different, where)
    found["scoring"] = None if golds is None else score(golds, run, folder.samples.values(), quiet)
    folder.write_results(found, reporting.report(found))
    run.registry.run_finished(found)
    if not quiet:
        print(reporting.table(found), reporting.exactness(found), reporting.differences(found), sep="\n\n")
        print(reporting.busy(found), end="")
        print(f"\nWritten to {folder.path}: report.md, results.json, samples.jsonl")
    return found
