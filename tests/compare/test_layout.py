"""What is on disk after a run: the keys that readers know, the types that stand behind them, and their schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from quasar.cli import main
from quasar.compare.schema import FILES, schema
from quasar.compare.store import SampleRecord, lay_out, results_type
from quasar.core.description import Served
from tests.compare.test_check_run import HASTY

DOCS = Path(__file__).parents[2] / "docs"

RESULTS = [
    "schema_version", "environment", "model", "baseline", "added_arms", "published", "arms", "differences", "scoring",
]  # fmt: skip
ENVIRONMENT = [
    "quasar", "python", "packages", "git_revision", "command", "platform", "device", "device_name", "threads",
    "busy_processors_at_start", "configuration",
]  # fmt: skip
ARM = [
    "name", "task", "drafter", "verifier", "acceptor", "temperature", "num_prompts", "num_tokens", "num_steps",
    "tokens_per_second", "speedup", "speedup_ci95", "speedup_end_to_end", "speedup_mean_of_prompts",
    "speedup_own_precision", "acceptance_length", "acceptance_length_mean_of_prompts", "acceptance_rate",
    "acceptance_rate_at", "draft_rate", "step_cost", "exact_match", "exact_match_own_precision",
    "exact_with_respect_to", "relaxed", "reason", "policy", "drafter_description", "backend", "dtype", "weight_bytes",
    "peak_memory_bytes", "levels", "rows_forwarded", "layers_forwarded", "seconds_prefill", "seconds_to_first_token",
    "seconds_decode", "seconds_draft", "seconds_verify", "seconds_accept", "finish_reasons",
]  # fmt: skip
LEVEL = [
    "level", "num_steps", "drafted", "accepted", "emitted", "seconds_draft", "seconds_verify", "seconds_accept",
]  # fmt: skip
RATES = ["acceptance_length", "acceptance_rate"]
DIFFERENCE = [
    "arm", "reference", "question_id", "turn", "repeat", "position", "token_ids", "top_two_gap", "drift", "kind",
]  # fmt: skip
SCORE = [
    "arm", "task", "measure", "questions", "score", "score_standard_error", "same_result",
    "same_result_standard_error", "same_text", "same_text_standard_error", "cut",
]  # fmt: skip
SAMPLE = [
    "question_id", "turn", "task", "arm", "repeat", "num_tokens", "num_steps", "decode_tokens", "num_drafted",
    "num_accepted", "num_drafted_steps", "drafted_at", "accepted_at", "seconds_prefill", "seconds_decode",
    "seconds_draft", "seconds_verify", "seconds_accept", "seed", "prompt_hash", "num_prompt_tokens", "token_ids",
    "text", "finish_reason", "committed", "drafted", "rows_forwarded", "seconds_to_first_token", "cache_bytes",
    "levels", "layers_forwarded",
]  # fmt: skip

WATCH = """
import json
from quasar import hookimpl

@hookimpl
def quasar_run_finished(results):
    assert type(results) is dict
    with open({!r}, "w") as file:
        json.dump(results, file)
"""

PARROT = """
from quasar import Draft, Drafter, hookimpl

class Parrot(Drafter):
    '''Repeats the last token.'''

    name = "parrot"
    drafts_by = "point_mass"

    def propose(self, context, budget):
        return Draft.chains([[row.token_ids[-1]] * min(limit, 1) for row, limit in zip(context.rows, budget)])

    def describe(self):
        return SAID

@hookimpl
def quasar_drafters():
    return [Parrot]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_model):
    """A run in which every part of the layout occurs: a fault, an inner level, a policy, a score, published figures."""
    folder = tmp_path_factory.mktemp("layout")
    lines = [
        {"question_id": 1, "category": "chat", "turns": ["hello hello hello hello"]},
        {"question_id": "two", "category": "math", "turns": ["go go go go"], "reference": ["#### 2"]},
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "hasty.py").write_text(HASTY, encoding="utf-8")
    (folder / "watch.py").write_text(WATCH.format(str(folder / "seen.json")), encoding="utf-8")
    full = "verifier: {use: full, backend: torch}"
    (folder / "run.yaml").write_text(
        f"model: {tiny_model}\nplugins: [hasty.py, watch.py]\ndata: {{source: questions.jsonl}}\nscoring: {{}}\n"
        "sampling: {max_new_tokens: 16, no_repeat_ngram_size: 2}\n"
        "published: {hasty: {speedup: 1.5, acceptance_length: 2}}\npipelines:\n"
        f"  vanilla: {{{full}}}\n  hasty: {{drafter: ngram, acceptor: hasty, {full}}}\n"
        f"  inner: {{drafter: {{use: pipeline, drafter: ngram, {full}}}, {full}}}\n"
        f"  routed: {{drafter: {{use: routed, policy: length, arms: {{low: ngram, mid: none, high: none}}}}, {full}}}\n"
        f"  costs: {{drafter: {{use: adaptive, drafter: ngram, costs: {{1: 1.0, 4: 1.5}}, draft_cost: 0}}, {full}}}\n",
        encoding="utf-8",
    )
    assert main(["compare", str(folder / "run.yaml"), "--output", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


@pytest.mark.parametrize(("said", "code"), [("{'speed': 3}", 0), ("['fast']", 2)])
def test_a_plugin_may_say_a_dict_of_itself_and_nothing_else(tmp_path, tiny_model, capsys, said, code):
    (tmp_path / "parrot.py").write_text(PARROT.replace("SAID", said), encoding="utf-8")
    (tmp_path / "run.yaml").write_text(
        f"model: {tiny_model}\nplugins: [parrot.py]\nsampling: {{max_new_tokens: 3}}\ndata: {{source: one.jsonl}}\n"
        "pipelines: {parrot: {drafter: {use: union, drafters: [parrot]}, verifier: {use: full, backend: torch}}}\n",
        encoding="utf-8",
    )
    line = json.dumps({"question_id": 1, "category": "chat", "turns": ["hello"]})
    (tmp_path / "one.jsonl").write_text(line + "\n", encoding="utf-8")
    assert main(["compare", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out"), "--quiet"]) == code
    said_of_it = capsys.readouterr().err
    if code == 0:
        results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
        told = {"drafters": [{"use": "parrot", "speed": 3}]}
        assert arm(results, "parrot")["drafter_description"] == told
    else:
        assert said_of_it == (
            "quasar: error: drafter 'parrot': describe() should return a Description or a mapping of its attributes: "
            "it is of type list.\n"
        )


def arm(results, name):
    return next(each for each in results["arms"] if (each["name"], each["task"]) == (name, "overall"))


def test_every_key_has_the_name_and_the_place_that_readers_know(finished):
    results = json.loads((finished / "results.json").read_text(encoding="utf-8"))
    assert list(results) == RESULTS
    assert list(results["environment"]) == ENVIRONMENT
    assert [list(each) for each in results["arms"]] == [ARM] * 15
    assert [list(each) for each in arm(results, "inner")["levels"]] == [LEVEL + RATES]
    assert results["differences"]
    assert all(list(each) == DIFFERENCE for each in results["differences"])
    assert {each["kind"] for each in results["differences"] if each["arm"] == "hasty"} == {"fault"}
    assert list(results["scoring"]) == ["without_gold", "scores"]
    assert [list(each) for each in results["scoring"]["scores"]] == [SCORE] * 5
    assert results["published"] == {"hasty": {"speedup": 1.5, "acceptance_length": 2.0}}
    assert arm(results, "routed")["policy"] == {"served": {"low": 3, "mid": 0, "high": 0}}
    assert arm(results, "routed")["drafter_description"]["arms"]["low"] == {"use": "ngram"}
    assert arm(results, "costs")["drafter_description"]["costs"] == {"1": {"1": 1.0, "4": 1.5}}
    samples = [json.loads(line) for line in (finished / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [list(each) for each in samples] == [SAMPLE] * 10
    assert [list(level) for each in samples if each["arm"] == "inner" for level in each["levels"]] == [LEVEL] * 2


def test_the_hook_sees_what_the_file_holds(finished):
    seen = json.loads((finished.parent / "seen.json").read_text(encoding="utf-8"))
    assert seen == json.loads((finished / "results.json").read_text(encoding="utf-8"))


def test_files_are_what_the_types_say_and_the_types_what_the_files_say(finished):
    text = (finished / "results.json").read_text(encoding="utf-8")
    results = results_type().validate_json(text, strict=True)
    assert lay_out(results) == json.loads(text)
    assert next(each.policy for each in results.arms if each.name == "routed") == Served(
        {"low": 3, "mid": 0, "high": 0}
    )
    for line in (finished / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        assert TypeAdapter(SampleRecord).validate_json(line, strict=True) == SampleRecord.from_json(json.loads(line))


def break_at(place, value):
    """Return a function that sets a key at a place of a parsed file; ``...`` takes it away."""

    def apply(parsed):
        *path, last = place
        for key in path:
            parsed = parsed[key]
        if value is ...:
            del parsed[last]
        else:
            parsed[last] = value

    return apply


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("results.json", ("more",), 1),
        ("results.json", ("environment", "more"), 1),
        ("results.json", ("arms", 0, "more"), 1),
        ("results.json", ("arms", 0, "num_tokens"), "12"),
        ("results.json", ("arms", 0, "num_tokens"), 1.5),
        ("results.json", ("arms", 0, "speedup"), ...),
        ("results.json", ("arms", 8, "levels", 0, "more"), 1),
        ("results.json", ("differences", 0, "kind"), "mistake"),
        ("results.json", ("differences", 0, "token_ids"), [1]),
        ("results.json", ("scoring", "scores", 0, "cut"), None),
        ("results.json", ("published", "hasty", "speedup"), "fast"),
        ("samples.jsonl", ("more",), 1),
        ("samples.jsonl", ("token_ids",), ["a"]),
        ("samples.jsonl", ("text",), ...),
    ],
)
def test_a_file_of_another_layout_does_not_fit(finished, name, place, value):
    text = (finished / name).read_text(encoding="utf-8")
    parsed = json.loads(text if name == "results.json" else text.splitlines()[0])
    kind = TypeAdapter(SampleRecord) if name == "samples.jsonl" else results_type()
    kind.validate_json(json.dumps(parsed), strict=True)
    break_at(place, value)(parsed)
    with pytest.raises(ValidationError):
        kind.validate_json(json.dumps(parsed), strict=True)


def test_a_number_that_json_does_not_know_is_not_written_as_nothing(finished):
    results = results_type().validate_json((finished / "results.json").read_text(encoding="utf-8"), strict=True)
    configuration = {**results.environment.configuration, "repeats": float("inf")}
    broken = replace(results, environment=replace(results.environment, configuration=configuration))
    with pytest.raises(ValueError, match="not JSON compliant"):
        lay_out(broken)


@pytest.mark.parametrize("name", FILES)
def test_schemas_in_the_documentation_are_current(name):
    written = json.loads((DOCS / name).read_text(encoding="utf-8"))
    assert written == schema(FILES[name]), "stale: python -m quasar.compare.schema docs"


def objects(node):
    """Iterate over the schemas of mappings whose keys are known."""
    if isinstance(node, dict):
        if "properties" in node:
            yield node
        for value in node.values():
            yield from objects(value)
    elif isinstance(node, list):
        for value in node:
            yield from objects(value)


@pytest.mark.parametrize("name", FILES)
def test_a_schema_describes_every_key_and_allows_no_other(name):
    found = list(objects(schema(FILES[name])))
    assert len(found) == {"results.schema.json": 11, "samples.schema.json": 2}[name]
    for each in found:
        assert each["additionalProperties"] is False
        assert each["description"]
        assert "Attributes:" not in each["description"]
        assert all(values["description"] for values in each["properties"].values())
