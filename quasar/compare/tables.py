"""Cells and tables of the report."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.compare.results import ArmResult


def number(value: float | None, form: str = ".2f") -> str:
    """Return a number, or ``n/a``."""
    return "n/a" if value is None else format(value, form)


def share(value: float | None) -> str:
    """Return a share in per cent, or ``n/a``."""
    return "n/a" if value is None else f"{100 * value:.0f} %"


def arm_name(arm: ArmResult) -> str:
    """Return an arm's name; a relaxed arm says so everywhere."""
    return f"{arm.name}{' (relaxed)' if arm.relaxed else ''}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its columns aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]  # noqa: E501  # fmt: skip
        return f"| {' | '.join(cells)} |"

    rule = [f"{'-' * width}" if i == 0 else f"{'-' * (width - 1)}:" for i, width in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])
