"""The sub-command ``quasar generate``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quasar.core.records import Generation


def add_generate(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("generate", help="continue one prompt, streaming, and print the step statistics")
    parser.add_argument("prompt", help="the prompt, or - for standard input")
    parser.add_argument("--model", default="smollm2-135m")
    for kind, default in (("drafter", "ngram"), ("verifier", "full"), ("acceptor", "stochastic")):
        parser.add_argument(
            f"--{kind}", default=default, metavar="SPEC", help=f"a name, or '{{use: NAME, KEY: VALUE}}' ({default})"
        )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="a local file with hooks")
    parser.add_argument("--no-chat", action="store_true", help="do not use the model's chat template")
    parser.add_argument("--quiet", action="store_true", help="the text only")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a sampling parameter, e.g. temperature=0.7"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from quasar.core.config import apply_overrides, parse_yaml, validate
    from quasar.core.sampling import SamplingParams
    from quasar.pipelines.load import load_pipeline

    sampling = validate(SamplingParams, apply_overrides({}, arguments.set), "--set")
    specs = {kind: parse_yaml(getattr(arguments, kind), f"--{kind}") for kind in ("drafter", "verifier", "acceptor")}
    pipeline = load_pipeline(
        arguments.model, **specs, sampling=sampling, device=arguments.device, plugins=arguments.plugin,
        quiet=arguments.quiet, registry=arguments.registry,
    )  # fmt: skip
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    chat = False if arguments.no_chat else None
    output = pipeline.generate(prompt, sampling, chat=chat, on_text=lambda piece: print(piece, end="", flush=True))
    print()
    if not arguments.quiet:
        print(_statistics(output.generation), file=sys.stderr)


def _statistics(generation: Generation) -> str:
    """Two lines about the steps of a generation."""
    decode = generation.decode_steps
    seconds = {part: sum(getattr(step, f"seconds_{part}") for step in decode) for part in ("draft", "verify", "accept")}
    tokens, spent = len(generation.token_ids) - 1, sum(seconds.values())
    speed = f"{tokens / spent:.1f} tokens/s in decode" if spent else "no decode step"
    length = "n/a" if generation.acceptance_length is None else f"{generation.acceptance_length:.2f}"
    rate = "n/a" if generation.acceptance_rate is None else f"{100 * generation.acceptance_rate:.0f} %"
    parts = ", ".join(f"{part} {value:.2f} s" for part, value in seconds.items())
    return (
        f"[{tokens + 1} tokens in {len(decode)} steps after prefill, ended by {generation.finish_reason};"
        f" acceptance length {length}, acceptance rate {rate}]\n[{speed}: {parts}]"
    )
