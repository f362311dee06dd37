"""The table that ``quasar profile`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.profile.results import Forward, Profile

_MEGA, _GIGA = 1e6, 1e9


def table(found: Profile) -> str:
    """Return a profile as text: what was measured, then one block of lines for each context length."""
    verifier, where = found.verifier, found.environment
    bandwidth = found.read_bandwidth_bytes_per_second
    backend = verifier.backend or found.options.get("backend", "unknown")
    dtype = verifier.dtype or found.options.get("dtype", "unknown")
    lines = [
        f"{found.model}, verifier {found.options['use']}: backend {backend}, {dtype}, "
        f"{where.threads} threads on {where.device_name}",
        f"Weights {(verifier.weight_bytes or 0) / _MEGA:.1f} MB, of which every forward reads "
        f"{found.bytes_read_per_forward / _MEGA:.1f} MB; this machine reads {bandwidth / _GIGA:.1f} GB/s.",
        f"Floor {found.floor_ms:.1f} ms: no forward can be faster than reading its weights.",
    ]
    parts = list(dict.fromkeys(part for each in found.forwards for part in each.shares or ()))
    for context, cache_bytes in found.cache_bytes.items():
        seconds = cache_bytes / bandwidth
        lines += [
            "",
            f"Context {context} (keys and values: {cache_bytes / _MEGA:.1f} MB, {1e3 * seconds:.1f} ms to read)",
            "rows       ms  [quartiles]         ÷ 1 row  ÷ floor" + "".join(f"  {part:>10}" for part in parts),
        ]
        lines += [_line(each, parts) for each in found.forwards if each.context == context]
    lines += ["", f"Shares by {found.parts_from}; medians of {found.forwards[0].num_forwards} rounds."]
    return "\n".join(lines)


def _line(forward: Forward, parts: Sequence[str]) -> str:
    low, high = forward.ms_quartiles
    spread = f"[{low:.2f}, {high:.2f}]"
    relative = "n/a" if forward.times_one_row is None else f"{forward.times_one_row:.2f}"
    shares = forward.shares or {}
    shown = "".join(f"  {100 * shares[part]:>8.0f} %" if part in shares else f"  {'n/a':>10}" for part in parts)
    return f"{forward.rows:>4} {forward.ms:>8.2f}  {spread:<18}  {relative:>7}  {forward.times_floor:>7.2f}{shown}"
