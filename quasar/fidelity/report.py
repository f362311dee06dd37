"""The table that ``quasar fidelity`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quasar.fidelity.measure import MEASURES

_WIDTH = 50


def table(found: Mapping[str, Any]) -> str:
    """Return what was measured as text: a line for each task, one for all, and the layers if they were asked for."""
    verifier, reference = found["verifier"], found["reference"]
    lines = [
        f"{found['model']}: {_name(verifier)} against {_name(reference)}",
        f"Teacher-forced on the reference's greedy text; ± one standard error over {found['prompts']} prompts.",
        "",
        f"{'task':<16} {'positions':>9}  {'top-1 agreement':>17}  {'KL (nats)':>19}  {'TV':>17}",
    ]
    lines += [_line(task, each) for task, each in found["tasks"].items()]
    lines += [_line("all", found)]
    if "layers" in found:
        lines += ["", "Error of each decoder layer on the reference's input, relative to what the layer adds:"]
        lines += bars(found["layers"])
    return "\n".join(lines)


def bars(values: Sequence[float]) -> list[str]:
    """Return a bar chart in text, one line for each value, the largest as long as the chart is wide."""
    top = max(values) or 1.0
    return [f"{number:>4} {value:>8.4f} {'█' * round(_WIDTH * value / top)}" for number, value in enumerate(values)]


def _name(described: Mapping[str, Any]) -> str:
    extra = [str(described[key]) for key in ("backend", "smoothing") if described.get(key)]
    return f"{described['judges_by']} ({', '.join(extra)})" if extra else str(described["judges_by"])


def _line(task: str, each: Mapping[str, Any]) -> str:
    cells = []
    for name, digits in zip(MEASURES, (3, 5, 4), strict=True):
        error = each[f"{name}_standard_error"]
        spread = "" if error is None else f" ± {error:.{digits}f}"
        cells.append(f"{each[name]:.{digits}f}{spread}")
    return f"{task or '-':<16} {each['positions']:>9}  {cells[0]:>17}  {cells[1]:>19}  {cells[2]:>17}"
