"""W8A8 on an NVIDIA GPU: fidelity and milliseconds of every precision there, each in a process of its own.

    python benchmarks/torchao_cuda.py [--model smollm2-135m] [--limit 4] [--seconds 60] [--output FILE.json]

Its authors have no GPU and never ran it. Read the result for two things: whether ``int8`` compiled is faster than
``full`` at the rows that you verify (torchao falls back to a float product, without saying so, where cuBLAS refuses 16
rows or fewer), and whether its fidelity equals that of backend ``reference``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ARMS = {
    "full": "full",
    "int8 reference": "{use: int8, backend: reference}",
    "int8 torchao eager": "{use: int8, backend: torchao}",
    "int8 torchao compiled": "{use: int8, backend: torchao, compiled: true}",
    "fp8": "fp8",
    "int4": "int4",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--limit", default="4", help="prompts of each task, for fidelity")
    parser.add_argument("--seconds", default="60", help="how long each precision is timed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, help="everything as JSON")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name, verifier in ARMS.items():
        common = ["--model", arguments.model, "--device", arguments.device, "--verifier", verifier]
        laws = quasar("fidelity", *common, "--limit", arguments.limit)
        times = quasar("profile", *common, "--rows", "1", "6", "17", "32", "--seconds", arguments.seconds)
        found[name] = {"fidelity": laws, "profile": times}
        print(f"{name:<22} {described(laws, times)}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n")


def quasar(*words: str) -> Any:
    """Return the JSON that a command prints, or its error as a text."""
    done = subprocess.run(
        [sys.executable, "-m", "quasar.cli", *words, "--json", "--quiet"], capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def described(laws: Any, times: Any) -> str:
    """Return one line."""
    if isinstance(laws, str) or isinstance(times, str):
        return laws if isinstance(laws, str) else str(times)
    rows = ", ".join(f"{each['rows']} rows {each['ms']:.2f} ms" for each in times["forwards"] if each["context"] == 512)
    return f"KL {laws['kl']:.5f}, top-1 {laws['top1_agreement']:.4f}; {rows}"


if __name__ == "__main__":
    main()
