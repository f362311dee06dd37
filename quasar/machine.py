"""This machine and this installation: processor, load, versions, revision. Stored beside every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from quasar.version import __version__

_BUSY = 0.3
"""Processors that others keep busy, from which on times are not to be trusted."""

_INTERVAL = 0.5
"""Seconds over which that is observed."""

_PACKAGES = ("torch", "transformers", "torchao", "pluggy", "pydantic")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where something was measured.

    Attributes:
        quasar: our version.
        python: Python's.
        packages: those of the libraries that decide about speed and texts.
        git_revision: revision of the checkout, ``+changes`` if its files differ from it; ``None`` outside of one.
        command: name and arguments of the process.
        platform: operating system.
        device: what models computed on, e.g. ``cpu``.
        device_name: what the device calls itself.
        threads: threads of torch.
    """

    quasar: str
    python: str
    packages: Mapping[str, str]
    git_revision: str | None
    command: str
    platform: str
    device: str
    device_name: str
    threads: int


def environment(device: str) -> Environment:
    """Return versions, git revision, device and threads of this process."""
    return Environment(
        quasar=__version__,
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        git_revision=_git_revision(),
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        platform=platform.platform(),
        device=device,
        device_name=torch.cuda.get_device_name() if device.startswith("cuda") else processor(),
        threads=torch.get_num_threads(),
    )


def is_busy(processors: float | None) -> bool:
    """Whether times are not to be trusted: one other process on two cores can slow a forward tenfold."""
    return processors is not None and processors >= _BUSY


def busy_processors() -> float | None:
    """Return how many processors others keep busy now; ``None`` where the system does not say.

    Not the load average: that still counts the command before this one.
    """
    readings = []
    for pause in (0.0, _INTERVAL):
        time.sleep(pause)
        readings.append((_busy_seconds(), time.process_time(), time.monotonic()))
    (all_before, own_before, start), (all_after, own_after, end) = readings
    if all_before is None or all_after is None:
        return None
    return max(0.0, (all_after - all_before) - (own_after - own_before)) / (end - start)


def _busy_seconds() -> float | None:
    """Return the processor time that was used since the start of the machine, by anyone, in seconds."""
    try:
        ticks = list(map(int, Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]))
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _waiting, *others = ticks[:8]  # guests, behind them, are part of user
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _git_revision() -> str | None:
    """Revision of the checkout that this package runs from, ``+changes`` if its files differ from it."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def processor() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
