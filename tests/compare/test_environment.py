"""Whether others use the machine now, from readings of the kernel's clocks."""

from __future__ import annotations

import pytest

from quasar import machine as module

SECOND = 100
"""Ticks."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that sets what a second of observation will read: ticks by kind, and our own seconds."""

    def set_up(own: float = 0.0, **ticks: int):
        now = {"stat": dict.fromkeys(KINDS, 12_345), "own": 7.0, "time": 100.0}

        def sleep(seconds):
            if seconds:
                now["time"] += 1.0
                now["own"] += own
                for kind, count in ticks.items():
                    now["stat"][kind] += count

        class Stat:
            def __init__(self, path):
                assert path == "/proc/stat"

            def read_text(self, encoding):
                return f"cpu  {' '.join(map(str, now['stat'].values()))}\ncpu0 1 2 3\nintr 5\n"

        monkeypatch.setattr(module, "Path", Stat)
        monkeypatch.setattr(module.time, "sleep", sleep)
        monkeypatch.setattr(module.time, "process_time", lambda: now["own"])
        monkeypatch.setattr(module.time, "monotonic", lambda: now["time"])
        monkeypatch.setattr(module.os, "sysconf", lambda name: SECOND)

    return set_up


KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


@pytest.mark.parametrize(
    ("ticks", "own", "expected"),
    [
        ({"idle": 200}, 0.0, 0.0),
        ({"user": 100, "idle": 100}, 0.0, 1.0),
        ({"user": 100, "idle": 100}, 1.0, 0.0),  # that was ourselves
        ({"nice": 30, "system": 20, "irq": 5, "softirq": 5, "idle": 140}, 0.1, 0.5),
        ({"steal": 50, "idle": 150}, 0.0, 0.5),  # another virtual machine
        ({"user": 40, "guest": 40, "idle": 160}, 0.0, 0.4),
        ({"iowait": 200}, 0.0, 0.0),
        ({"user": 10, "idle": 190}, 0.2, 0.0),  # ticks are coarser than our own clock
    ],
)
def test_processors_that_others_keep_busy(machine, ticks, own, expected):
    machine(own, **ticks)
    assert module.busy_processors() == pytest.approx(expected)


def test_a_command_that_has_ended_does_not_count(machine):
    machine(idle=200)
    assert not module.is_busy(module.busy_processors())
    machine(user=100, idle=100)
    assert module.is_busy(module.busy_processors())


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_system_that_does_not_say_is_not_called_busy(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(module, "Path", refuse)
    monkeypatch.setattr(module, "_INTERVAL", 0.0)
    assert module.busy_processors() is None
    assert not module.is_busy(None)
