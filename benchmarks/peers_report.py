"""What the race counts: the same rule for every arm, by ``quasar.compare.counting``.

``decode`` is tokens after the first step ÷ seconds after the first step; ``end to end`` is all new tokens ÷ all
seconds, prefill included. Ratios are of pooled tokens and seconds over the prompts that both arms answered, with a
95 % bootstrap interval over prompts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peers_arms import LLAMA, QUASAR, TRANSFORMERS

from quasar.compare.counting import (
    Quotient,
    Sample,
    acceptance_length,
    first_difference,
    paired_ratio,
    ratio_ci95,
    tokens_per_second,
    tokens_per_second_end_to_end,
)

RATES = {"decode": tokens_per_second, "end_to_end": tokens_per_second_end_to_end}
prefill_seconds = Quotient(lambda sample: sample.seconds_prefill, lambda sample: 1)
Answers = Mapping[Any, list[int]]
"""Token ids by prompt."""

VANILLA, F16 = "vanilla", "llama-f16"


def counted(answer: Mapping[str, Any]) -> Sample:
    """Return an answer as the statistics take it; prefill is the first step, whatever tokens it yielded."""
    steps, tokens = answer["steps"], len(answer["token_ids"])
    return Sample(
        question_id=answer["question"], turn=0, task=answer["task"], arm=answer["arm"], repeat=0, num_tokens=tokens,
        num_steps=len(steps) - 1, decode_tokens=tokens - steps[0][1], num_drafted=0, num_accepted=0,
        num_drafted_steps=0, drafted_at=(), accepted_at=(), seconds_prefill=steps[0][0],
        seconds_decode=steps[-1][0] - steps[0][0], seconds_draft=0.0, seconds_verify=0.0, seconds_accept=0.0,
    )  # fmt: skip


def summary(arms: Mapping[str, Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count every arm and compare every pair.

    Args:
        arms: by name, with ``family`` and ``reference``.
        answers: one record a prompt and arm; failed ones (with ``error``) are left out.

    Returns:
        ``arms``, ``ratios[method][baseline]`` and ``best``: the fastest arm of each peer, by pooled decode rate.
    """
    good = [answer for answer in answers if "error" not in answer]
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    ids: dict[str, dict[Any, list[int]]] = {name: {} for name in arms}
    for answer in good:
        samples[answer["arm"]].append(counted(answer))
        ids[answer["arm"]][answer["question"]] = answer["token_ids"]
    samples = {name: found for name, found in samples.items() if found}
    best = {}
    for family in (TRANSFORMERS, LLAMA):
        rates = {name: tokens_per_second(samples[name]) for name in samples if arms[name]["family"] == family}
        ran = {name: rate for name, rate in rates.items() if rate is not None}
        best[family] = max(ran, key=lambda name: ran[name]) if ran else None
    return {
        "arms": {name: _arm(found, ids, arms[name]["reference"]) for name, found in samples.items()},
        "best": best,
        "ratios": {
            method: {base: _ratios(samples[method], samples[base]) for base in samples if base != method}
            for method in samples
        },
    }


def _arm(samples: Sequence[Sample], ids: Mapping[str, Answers], reference: str | None) -> dict[str, Any]:
    own = ids[samples[0].arm]
    found: dict[str, Any] = {
        "prompts": len(samples),
        "tokens": sum(sample.num_tokens for sample in samples),
        "acceptance_length": acceptance_length(samples),
        "prefill_ms": _spread(1e3 * sample.seconds_prefill for sample in samples),
        "same_as_reference": None if reference is None else _same(own, ids[reference]),
        "share_before_leaving_vanilla": _before_leaving(own, ids.get(VANILLA, {})),
    }
    for name, rate in RATES.items():
        values = [value for sample in samples if (value := rate([sample])) is not None]
        found[name] = {"pooled": rate(samples), "over_prompts": _spread(values)}
    return found


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return median and quartiles."""
    seen = list(values)
    if not seen:
        return None
    low, middle, high = statistics.quantiles(seen, n=4, method="inclusive") if len(seen) > 1 else seen * 3
    return {"q25": low, "median": middle, "q75": high}


def _same(own: Answers, other: Answers) -> list[int]:
    """Return how many answers are identical, and of how many."""
    common = own.keys() & other.keys()
    return [sum(own[key] == other[key] for key in common), len(common)]


def _before_leaving(own: Answers, other: Answers) -> float | None:
    """Return the mean share of an answer that comes before its first difference from vanilla's.

    Rounding parts texts sooner or later; an arm on wrong weights parts at once.
    """
    shares = []
    for key in own.keys() & other.keys():
        place = first_difference(own[key], other[key])
        shares.append(1.0 if place is None else place / max(len(own[key]), len(other[key])))
    return statistics.fmean(shares) if shares else None


def _ratios(method: Sequence[Sample], baseline: Sequence[Sample]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in {**RATES, "prefill": prefill_seconds}.items():
        found[name] = {
            "ratio": paired_ratio(method, baseline, value),
            "ci95": ratio_ci95(method, baseline, value),
        }
    return found


def table(results: Mapping[str, Any]) -> str:
    """Return the race as text, fastest arm first."""
    found, arms = results["summary"], results["arms"]
    columns = [base for base in (VANILLA, *found["best"].values()) if base in found["arms"]]
    lines = []
    for rate, title in (("decode", "decode, prefill excluded"), ("end_to_end", "end to end, prefill included")):
        heads = "".join(f"  {'÷ ' + base:>26}" for base in columns)
        lines += [f"Tokens per second, {title}:", f"{'arm':<22} {'tok/s':>7}  {'median [quartiles]':<22}{heads}"]
        for name in sorted(found["arms"], key=lambda name: -(found["arms"][name][rate]["pooled"] or 0)):
            pooled, spread = found["arms"][name][rate]["pooled"], found["arms"][name][rate]["over_prompts"]
            cells = "".join(f"  {_ratio(found, name, base, rate):>26}" for base in columns)
            lines.append(f"{name:<22} {_number(pooled, '.1f'):>7}  {_shown(spread):<22}{cells}")
        lines.append("")
    head = f"{'arm':<22} {'L':>5}  {'prefill ms [quartiles]':<28} {'÷ ' + F16:>20}"
    lines.append(f"{head}  {'same text':>10}  {'until apart':>11}")
    for name, counts in found["arms"].items():
        same, apart = counts["same_as_reference"], counts["share_before_leaving_vanilla"]
        text = "n/a" if same is None or arms[name]["reference"] == name else f"{same[0]} of {same[1]}"
        left = "n/a" if apart is None else f"{100 * apart:.0f} %"
        lines.append(
            f"{name:<22} {_number(counts['acceptance_length']):>5}  {_shown(counts['prefill_ms']):<28} "
            f"{_ratio(found, name, F16, 'prefill'):>20}  {text:>10}  {left:>11}"
        )
    failed = [f"{name}: {arm['error']}" for name, arm in arms.items() if arm.get("error")]
    failed += [f"{a['arm']}, prompt {a['question']}: {a['error']}" for a in results["answers"] if "error" in a]
    return "\n".join([*lines, *(["", "Failed:", *failed] if failed else []), "", _FOOTNOTE])


_FOOTNOTE = f"""\
Pooled tok/s, then the median over prompts. Ratios: pooled, prompts paired, 95 % bootstrap interval. L: tokens a forward
in decode. Prefill: until the first token. Same text: answers identical to plain decoding by the same verifier, for
{QUASAR}'s arms. Until apart: share of an answer before its first difference from {VANILLA}."""


def _number(value: float | None, form: str = ".2f") -> str:
    return "n/a" if value is None else format(value, form)


def _shown(spread: Mapping[str, float] | None) -> str:
    return "n/a" if spread is None else f"{spread['median']:.1f} [{spread['q25']:.1f}, {spread['q75']:.1f}]"


def _ratio(found: Mapping[str, Any], method: str, baseline: str, rate: str) -> str:
    pair = found["ratios"].get(method, {}).get(baseline)
    if pair is None or pair[rate]["ratio"] is None:
        return "1" if method == baseline else "n/a"
    interval = pair[rate]["ci95"]
    return f"{pair[rate]['ratio']:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
