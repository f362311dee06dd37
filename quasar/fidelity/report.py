"""The table that ``quasar fidelity`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.fidelity.results import Fidelity, Side, Summary

_WIDTH = 50


def table(model: str, found: Fidelity) -> str:
    """Return what was measured as text: a line for each task, one for all, and the layers if they were asked for.

    Args:
        model: name of the model.
        found: what was measured.
    """
    lines = [
        f"{model}: {_name(found.verifier)} against {_name(found.reference)}",
        f"Teacher-forced on the reference's greedy text; ± one standard error over {found.summary.prompts} prompts.",
        "",
        f"{'task':<16} {'positions':>9}  {'top-1 agreement':>17}  {'KL (nats)':>19}  {'TV':>17}",
    ]
    lines += [_line(task, each) for task, each in found.tasks.items()]
    lines += [_line("all", found.summary)]
    if found.layers is not None:
        lines += ["", "Error of each decoder layer on the reference's input, relative to what the layer adds:"]
        lines += bars(found.layers)
    return "\n".join(lines)


def bars(values: Sequence[float]) -> list[str]:
    """Return a bar chart in text, one line for each value, the largest as long as the chart is wide."""
    top = max(values) or 1.0
    return [f"{number:>4} {value:>8.4f} {'█' * round(_WIDTH * value / top)}" for number, value in enumerate(values)]


def _name(side: Side) -> str:
    backend = side.said.backend or side.options.get("backend")
    extra = [str(each) for each in (backend, side.said.details.get("smoothing")) if each]
    return f"{side.judges_by} ({', '.join(extra)})" if extra else str(side.judges_by)


def _line(task: str, each: Summary) -> str:
    agreement = _cell(each.top1_agreement, each.top1_agreement_standard_error, 3)
    kl = _cell(each.kl, each.kl_standard_error, 5)
    tv = _cell(each.tv, each.tv_standard_error, 4)
    return f"{task or '-':<16} {each.positions:>9}  {agreement:>17}  {kl:>19}  {tv:>17}"


def _cell(mean: float, error: float | None, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
