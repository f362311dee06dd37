"""The table, on the terminal and in ``report.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quasar.compare.report_sections import levels, policies, published, scores
from quasar.compare.results import OVERALL
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

Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def _interval(entry: Mapping[str, Any]) -> str:
    low_high = entry["speedup_ci95"]
    shown = number(entry["speedup"])
    return shown if low_high is None else f"{shown} [{low_high[0]:.2f}, {low_high[1]:.2f}]"


_COLUMNS: tuple[Column, ...] = (
    ("arm", arm_name),
    ("tok/s", lambda e: number(e["tokens_per_second"], ".1f")),
    ("speedup", _interval),
    ("end to end", lambda e: number(e["speedup_end_to_end"])),
    ("own", lambda e: number(e["speedup_own_precision"])),
    ("L", lambda e: number(e["acceptance_length"])),
    ("accept", lambda e: share(e["acceptance_rate"])),
    ("drafts", lambda e: share(e["draft_rate"])),
    ("step", lambda e: number(e["step_cost"])),
    ("same", lambda e: share(e["exact_match"])),
    ("same own", lambda e: share(e["exact_match_own_precision"])),
    ("memory", lambda e: f"{e['peak_memory_bytes'] / 2**20:.0f} MiB"),
)


def table(results: Mapping[str, Any]) -> str:
    """Return the overall table and the one of speed and acceptance length per task, as Markdown text."""
    entries: Sequence[Mapping[str, Any]] = results["arms"]
    tasks = list(dict.fromkeys(entry["task"] for entry in entries))
    overall = [[show(entry) for _, show in _COLUMNS] for entry in entries if entry["task"] == OVERALL]
    names = list(dict.fromkeys(entry["name"] for entry in entries))
    cells = {(e["name"], e["task"]): f"{number(e['speedup'])} / {number(e['acceptance_length'])}" for e in entries}
    shown = {e["name"]: arm_name(e) for e in entries}
    by_task = [[shown[name], *(cells[name, task] for task in tasks)] for name in names]
    return (
        grid([title for title, _ in _COLUMNS], overall)
        + f"\n\nSpeedup over '{results['baseline']}' / acceptance length, per task:\n\n"
        + grid(["arm", *tasks], by_task)
        + "".join(f"\n\n{each}" for show in (levels, policies, published, scores) if (each := show(results)))
    )


def exactness(results: Mapping[str, Any]) -> str:
    """Return one line per arm: what it is exact with respect to, and on which backend it ran."""
    lines = []
    for entry in results["arms"]:
        if entry["task"] == OVERALL:
            claim = (
                f"{entry['reason']}, exact with respect to {entry['exact_with_respect_to'] or 'nothing'}"
                if entry["relaxed"]
                else f"exact with respect to {entry['exact_with_respect_to']}"
            )
            lines.append(f"- {entry['name']}: {claim}; {entry['backend']} backend, {entry['dtype']}.")
    backends = {entry["backend"] for entry in results["arms"]}
    if len(backends) > 1:
        lines.append(
            f"- The arms ran on different backends ({', '.join(sorted(map(str, backends)))}): their speeds differ by "
            "engineering as well as by method."
        )
    return "\n".join(lines)


def differences(results: Mapping[str, Any]) -> str:
    """Return the list of answers that left the text of plain decoding with the same verifier, with the gaps."""
    found = results["differences"]
    if not found:
        return "Every arm that promises plain decoding's text gave it, token for token."
    rows = [
        [entry["arm"], str(entry["question_id"]), str(entry["turn"]), str(entry["repeat"]), str(entry["position"]),
         " / ".join(map(str, entry["token_ids"])), number(entry.get("top_two_gap"), ".4f"),
         number(entry.get("drift"), ".4f"), entry.get("kind", "n/a")]
        for entry in found
    ]  # fmt: skip
    head = ["arm", "question", "turn", "repeat", "position", "token / plain", "gap", "drift", "kind"]
    return (
        "These answers leave the text of plain decoding with the same verifier. Several rows in one forward round\n"
        "otherwise than one row alone. `gap`: between plain decoding's two largest logits there; `drift`: how far a\n"
        "logit moves there when the same output is forwarded in steps of the arm's own row counts; a near-tie is a\n"
        "gap that the drift can close, anything else would be a fault.\n\n" + grid(head, rows)
    )


def busy(results: Mapping[str, Any]) -> str:
    """Return a warning, if something else ran on the machine when the run began; else nothing."""
    others = results["environment"]["busy_processors_at_start"]
    if not is_busy(others):
        return ""
    return (
        f"\nThe machine was busy when this run began (others used {others:.1f} processors): threads wait for each\n"
        "other then, and the times mean little. Counts, texts and acceptance lengths are not affected.\n"
    )


def report(results: Mapping[str, Any]) -> str:
    """Return ``report.md``."""
    environment = results["environment"]
    configuration = environment["configuration"]
    sampling = configuration["sampling"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    data = configuration["data"]
    prompts = data["source"] if isinstance(data["source"], str) else ", ".join(data["source"])
    return "\n".join([
        f"# {results['model']}: {', '.join(configuration['pipelines'])}",
        "",
        f"Temperature {sampling['temperature']:g}, up to {sampling['max_new_tokens']} new tokens, seed "
        f"{sampling['seed']}, {configuration['repeats']} repeat(s), batch 1, prompts "
        f"`{prompts}` (limit {data['limit'] or 'none'} a task).",
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
        f"{environment['device_name']}, {environment['threads']} threads, {environment['platform']}; "
        f"quasar {environment['quasar']} ({environment['git_revision'] or 'no git revision'}), {versions}. "
        "Every resolved setting is in `results.json`.",
        busy(results),
    ])  # fmt: skip
