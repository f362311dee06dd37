"""The command line: thin sub-commands over the library. A ``QuasarError`` is one line and exit 2."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quasar.commands.datastore import add_datastore
from quasar.commands.fidelity import add_fidelity
from quasar.commands.profile import add_profile
from quasar.core.errors import ConfigError, QuasarError
from quasar.version import __version__

_EXAMPLES = """\
examples:
  quasar ls drafters
  quasar compare --preset quickstart --limit 1
  quasar compare pipelines.yaml --set sampling.temperature=0.7 --output runs/warm
  quasar check pipelines.yaml
  quasar generate "Name three colours." --drafter ngram --verifier int8
  quasar profile --verifier '{use: int8}' --seconds 30
  quasar fidelity --verifier int8 --limit 2 --layers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        from quasar.plugins.registry import load_registry

        registry = load_registry()
        arguments = _parser(registry).parse_args(argv, argparse.Namespace(registry=registry))
        return arguments.run(arguments) or 0
    except QuasarError as error:
        print(f"quasar: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quasar: interrupted; a comparison continues with --resume and the same --output.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, `head` for example, has left
        sys.stderr.close()
        return 0


def _parser(registry: Any) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="quasar", description="Composable speculative decoding.", epilog=_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"quasar {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_compare(commands)
    _add_check(commands)
    _add_generate(commands)
    _add_ls(commands)
    _add_models(commands)
    add_profile(commands)
    add_datastore(commands)
    add_fidelity(commands)
    registry.add_commands(commands)
    return parser


def _add_run_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.yaml", help="the comparison")
    parser.add_argument("--preset", help="a comparison that comes with quasar, for example quickstart")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. sampling.temperature=0.7"
    )


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="run several pipelines on the same prompts and report")
    _add_run_source(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="the first N prompts of each task")
    parser.add_argument("--data", nargs="+", metavar="SOURCE", help="'bundled' or JSONL files, each then a task")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: runs/NAME-TIME")
    parser.add_argument("--resume", action="store_true", help="continue the run in --output")
    parser.add_argument("--quiet", action="store_true", help="write the files, print nothing")
    parser.set_defaults(run=_compare)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="compose every arm without weights; say what is exact")
    _add_run_source(parser)
    parser.add_argument("--run", dest="run_arms", action="store_true", help="play every arm; exit 1 on a fault")
    parser.add_argument("--model", action="store_true", help="with --run: on the file's model, not a tiny random one")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N prompts of each task")
    parser.set_defaults(run=_check)


def _add_generate(commands: Any) -> None:
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
    parser.set_defaults(run=_generate)


def _add_ls(commands: Any) -> None:
    parser = commands.add_parser("ls", help="list components and models, with the plugin each came from")
    parser.add_argument("kind", nargs="?", choices=["drafters", "verifiers", "acceptors", "backends", "models"])
    parser.add_argument("--json", action="store_true", help="a JSON list on standard output, nothing else")
    parser.set_defaults(run=_ls)


def _add_models(commands: Any) -> None:
    parser = commands.add_parser("models", help="fetch built-in models")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    pull = actions.add_parser("pull", help="fetch and convert a built-in model into QUASAR_HOME")
    pull.add_argument("name")
    pull.add_argument("--quiet", action="store_true")
    pull.set_defaults(run=_pull)


def _load(arguments: argparse.Namespace, **more: Any) -> Any:
    from quasar.compare.config import load_run
    from quasar.compare.preset_files import preset_names

    if (arguments.file is None) == (arguments.preset is None):
        raise ConfigError(f"give either FILE.yaml or --preset NAME (one of {', '.join(preset_names())}).")
    return load_run(arguments.file, arguments.preset, arguments.set, **more)


def _compare(arguments: argparse.Namespace) -> None:
    from quasar.compare.command import compare, default_output

    if arguments.resume and arguments.output is None:
        raise ConfigError("--resume: say which run with --output DIR.")
    run = _load(arguments, limit=arguments.limit, source=arguments.data)
    compare(run, arguments.output or default_output(run), arguments.resume, arguments.quiet)


def _check(arguments: argparse.Namespace) -> int:
    run = _load(arguments, limit=arguments.limit)
    if arguments.run_arms:
        return _audit(run, arguments.model)
    for arm in run.arms:
        parts = arm.composition
        claim = f"exact with respect to {parts.exact_with_respect_to or 'nothing'}"
        claim = f"relaxed, {claim}" if parts.relaxed else claim
        mark = " (added as a baseline)" if arm.name in run.added else ""
        print(f"{arm.name}{mark}: {parts.drafter.name} → {parts.verifier.name} → {parts.acceptor.name}")
        print(f"  {claim}: {parts.reason}.")
    print(f"{len(run.questions)} prompts, baseline '{run.baseline}'. Nothing was loaded.")
    return 0


def _audit(run: Any, on_real_model: bool) -> int:
    """Play every arm; 1 if a token has no innocent explanation."""
    from quasar.compare.audit import audit_real, audit_tiny
    from quasar.compare.command import prepare

    verdicts = audit_tiny(run) if not on_real_model else audit_real(run, *prepare(run, quiet=True))
    failed = False
    for verdict in verdicts:
        print(verdict.line(), flush=True)
        failed = failed or bool(verdict.faults)
    return 1 if failed else 0


def _generate(arguments: argparse.Namespace) -> None:
    from quasar.core.config import apply_overrides, parse_yaml, validate
    from quasar.core.sampling import SamplingParams
    from quasar.pipelines.load import load_pipeline

    sampling = validate(SamplingParams, apply_overrides({}, arguments.set), "--set")
    specs = {kind: parse_yaml(getattr(arguments, kind), f"--{kind}") for kind in ("drafter", "verifier", "acceptor")}
    pipeline = load_pipeline(
        arguments.model, **specs, sampling=sampling, device=arguments.device, plugins=arguments.plugin,
        quiet=arguments.quiet,
    )  # fmt: skip
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    chat = False if arguments.no_chat else None
    output = pipeline.generate(prompt, sampling, chat=chat, on_text=lambda piece: print(piece, end="", flush=True))
    print()
    if not arguments.quiet:
        print(_statistics(output.generation), file=sys.stderr)


def _statistics(generation: Any) -> str:
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


def _ls(arguments: argparse.Namespace) -> None:
    kind = arguments.kind.removesuffix("s") if arguments.kind else None
    listed = arguments.registry.listing(kind)
    if arguments.json:
        print(json.dumps([asdict(item) for item in listed], indent=2))
        return
    for item in listed:
        origin = f"{item.distribution} {item.version}".strip()
        text = f"BROKEN: {item.error}" if item.error else item.summary
        print(f"{item.kind:<9} {item.name:<16} {text}  [{origin}]")


def _pull(arguments: argparse.Namespace) -> None:
    from quasar.core.errors import did_you_mean

    registry = arguments.registry
    model = registry.model(arguments.name)
    if model is None:
        names = [item.name for item in registry.listing("model")]
        raise ConfigError(f"models pull: no built-in model '{arguments.name}'.{did_you_mean(arguments.name, names)}")
    print(model.fetch(quiet=arguments.quiet))


if __name__ == "__main__":
    sys.exit(main())
