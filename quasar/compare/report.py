"""The table, on the terminal and in ``report.md``."""

from __future__ import annotations

from collections.abc import Callable

from quasar.compare.config import Run
from quasar.compare.report_sections import levels, overall, policies, published, scores
from quasar.compare.results import ArmResult, Results
from quasar.compare.tables import arm_name, grid, number, share
from quasar.machine import is_busy

_DEFINITIONS = """\
- `tok/s`: tokens committed in decode ÷ seconds of decode; prefill and the token that it yields are left out.
- `speedup`: tok/s ÷ that of the baseline arm, prompts paired, with a 95 % bootstrap interval over prompts. `end to end`
  has prefill's token and seconds in it. `own` is relative to plain decoding with the arm's own verifier.
- `L`: acceptance length, tokens committed ÷ verifier forwards in decode, correction or bonus included, draft-less steps
  included; plain decoding is 1.00. `accept`: accepted ÷ drafted. `drafts`: share of steps that had a draft.
- `step`: step cost, seconds per verifier step ÷ seconds per plain full-precision step.
- `same`: share of answers whose token ids equal the baseline's; `same own`: those of plain decoding with the arm's own
  verifier.
- `memory`: weights and key-value cache that the arm needs; arms of one run share what they can."""

Column = tuple[str, Callable[[ArmResult], str]]


def _interval(arm: ArmResult) -> str:
    low_high = arm.speedup_ci95
    shown = number(arm.speedup)
    return shown if low_high is None else f"{shown} [{low_high[0]:.2f}, {low_high[1]:.2f}]"


_COLUMNS: tuple[Column, ...] = (
    ("arm", arm_name),
    ("tok/s", lambda arm: number(arm.tokens_per_second, ".1f")),
    ("speedup", _interval),
    ("end to end", lambda arm: number(arm.speedup_end_to_end)),
    ("own", lambda arm: number(arm.speedup_own_precision)),
    ("L", lambda arm: number(arm.acceptance_length)),
    ("accept", lambda arm: share(arm.acceptance_rate)),
    ("drafts", lambda arm: share(arm.draft_rate)),
    ("step", lambda arm: number(arm.step_cost)),
    ("same", lambda arm: share(arm.exact_match)),
    ("same own", lambda arm: share(arm.exact_match_own_precision)),
    ("memory", lambda arm: f"{arm.peak_memory_bytes / 2**20:.0f} MiB"),
)


def table(results: Results) -> str:
    """Return the overall table and the one of speed and acceptance length per task, as Markdown text."""
    tasks = list(dict.fromkeys(arm.task for arm in results.arms))
    cells = {(arm.name, arm.task): f"{number(arm.speedup)} / {number(arm.acceptance_length)}" for arm in results.arms}
    by_task = [[arm_name(arm), *(cells[arm.name, task] for task in tasks)] for arm in overall(results)]
    return (
        grid([title for title, _ in _COLUMNS], [[show(arm) for _, show in _COLUMNS] for arm in overall(results)])
        + f"\n\nSpeedup over '{results.baseline}' / acceptance length, per task:\n\n"
        + grid(["arm", *tasks], by_task)
        + "".join(f"\n\n{each}" for show in (levels, policies, published, scores) if (each := show(results)))
    )


def exactness(results: Results) -> str:
    """Return one line per arm: what it is exact with respect to, and on which backend it ran."""
    lines = []
    for arm in overall(results):
        claim = (
            f"{arm.reason}, exact with respect to {arm.exact_with_respect_to or 'nothing'}"
            if arm.relaxed
            else f"exact with respect to {arm.exact_with_respect_to}"
        )
        lines.append(f"- {arm.name}: {claim}; {arm.backend} backend, {arm.dtype}.")
    backends = {arm.backend for arm in results.arms}
    if len(backends) > 1:
        lines.append(
            f"- The arms ran on different backends ({', '.join(sorted(map(str, backends)))}): their speeds differ by "
            "engineering as well as by method."
        )
    return "\n".join(lines)


def differences(results: Results) -> str:
    """Return the list of answers that left the text of plain decoding with the same verifier, with the gaps."""
    if not results.differences:
        return "Every arm that promises plain decoding's text gave it, token for token."
    rows = [
        [each.arm, str(each.question_id), str(each.turn), str(each.repeat), str(each.position),
         " / ".join(map(str, each.token_ids)), number(each.top_two_gap, ".4f"), number(each.drift, ".4f"), each.kind]
        for each in results.differences
    ]  # fmt: skip
    head = ["arm", "question", "turn", "repeat", "position", "token / plain", "gap", "drift", "kind"]
    return (
        "These answers leave the text of plain decoding with the same verifier. Several rows in one forward round\n"
        "otherwise than one row alone. `gap`: between plain decoding's two largest logits there; `drift`: how far a\n"
        "logit moves there when the same output is forwarded in steps of the arm's own row counts; a near-tie is a\n"
        "gap that the drift can close, anything else would be a fault.\n\n" + grid(head, rows)
    )


def busy(results: Results) -> str:
    """Return a warning, if something else ran on the machine when the run began; else nothing."""
    others = results.environment.busy_processors_at_start
    if others is None or not is_busy(others):
        return ""
    return (
        f"\nThe machine was busy when this run began (others used {others:.1f} processors): threads wait for each\n"
        "other then, and the times mean little. Counts, texts and acceptance lengths are not affected.\n"
    )


def report(run: Run, results: Results) -> str:
    """Return ``report.md``."""
    where, sampling, data = results.environment, run.sampling, run.config.data
    versions = ", ".join(f"{name} {version}" for name, version in where.packages.items())
    prompts = data.source if isinstance(data.source, str) else ", ".join(data.source)
    return "\n".join([
        f"# {results.model}: {', '.join(arm.name for arm in run.arms)}",
        "",
        f"Temperature {sampling.temperature:g}, up to {sampling.max_new_tokens} new tokens, seed "
        f"{sampling.seed}, {run.config.repeats} repeat(s), batch 1, prompts "
        f"`{prompts}` (limit {data.limit or 'none'} a task).",
        "",
        table(results),
        "",
        "## What is exact",
        "",
        exactness(results),
        "",
        differences(results),
        "",
        "## What the columns mean",
        "",
        _DEFINITIONS,
        "",
        "## Where it ran",
        "",
        f"{where.device_name}, {where.threads} threads, {where.platform}; "
        f"quasar {where.quasar} ({where.git_revision or 'no git revision'}), {versions}. "
        "Every resolved setting is in `results.json`.",
        busy(results),
    ])  # fmt: skip
