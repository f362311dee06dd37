"""Processor and wall seconds of commands that load no model, each in a fresh process; two installations by turns.

python benchmarks/cold_start.py
python benchmarks/cold_start.py --against OTHER/.venv/bin/quasar
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("--help", "--version", "ls models", "ls", "show ngram", "check --preset quickstart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="QUASAR", help="another installation's command")
    parser.add_argument("--rounds", type=int, default=7, help="one more comes first, uncounted")
    arguments = parser.parse_args()
    programs = [str(Path(sys.executable).with_name("quasar")), *([arguments.against] if arguments.against else [])]
    for command in COMMANDS:
        runs: dict[str, list[tuple[float, float]]] = {program: [] for program in programs}
        for _ in range(arguments.rounds + 1):
            for program in programs:
                runs[program].append(seconds([program, *command.split()]))
        shown = "   ".join(described(runs[program][1:]) for program in programs)
        print(f"quasar {command:<26} {shown}", flush=True)


def seconds(command: list[str]) -> tuple[float, float]:
    """Run a command and return its processor seconds and its wall seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def described(runs: list[tuple[float, float]]) -> str:
    cpu, wall = ([run[part] for run in runs] for part in (0, 1))
    return f"cpu {statistics.median(cpu):.2f} [{min(cpu):.2f}, {max(cpu):.2f}], wall {statistics.median(wall):.2f}"


if __name__ == "__main__":
    main()
