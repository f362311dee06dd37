"""The real 135M model, end to end, as few times as will do."""

from __future__ import annotations

import json

import pytest

from quasar.cli import main

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smoke(smollm2, tmp_path_factory):
    output = tmp_path_factory.mktemp("smoke") / "out"
    words = ["compare", "--preset", "smoke", "--limit", "1", "--set", "sampling.max_new_tokens=8"]
    assert main([*words, "--output", str(output), "--quiet"]) == 0
    return output


def overall(output) -> dict[str, dict]:
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    return {arm["name"]: arm for arm in results["arms"] if arm["task"] == "overall"}


def test_smoke_preset_compares_the_paper_s_arms(smoke):
    arms = overall(smoke)
    assert {"vanilla", "ngram", "quasar", "vanilla-int8"} == arms.keys()
    assert arms["vanilla"]["acceptance_length"] == arms["vanilla-int8"]["acceptance_length"] == 1.0
    assert arms["ngram"]["acceptance_length"] >= 1.0
    assert arms["quasar"]["dtype"] == arms["vanilla"]["dtype"] == "bfloat16"


def test_int8_arm_holds_less_than_the_full_one(smoke):
    arms = overall(smoke)
    saved = arms["vanilla"]["weight_bytes"] - arms["vanilla-int8"]["weight_bytes"]
    # 106.2M weights in linear layers go from two bytes to one and padding; the tied embedding of 28.3M stays.
    assert 0 < saved < 106.2e6


def test_every_difference_is_a_near_tie(smoke):
    results = json.loads((smoke / "results.json").read_text(encoding="utf-8"))
    assert all(difference["kind"] == "near-tie" for difference in results["differences"]), results["differences"]


def test_in_float32_prompt_lookup_equals_plain_decoding(smollm2, tmp_path):
    (tmp_path / "run.yaml").write_text(
        f"model: {smollm2}\nsampling: {{max_new_tokens: 16}}\ndata: {{limit: 1}}\n"
        "pipelines:\n"
        "  vanilla: {verifier: &f {use: full, dtype: float32}}\n"
        "  ngram: {drafter: ngram, verifier: *f, exact: true}\n",
        encoding="utf-8",
    )
    assert main(["compare", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out"), "--quiet"]) == 0
    arms = overall(tmp_path / "out")
    assert arms["ngram"]["exact_match"] == 1.0
    assert arms["ngram"]["draft_rate"] > 0


def test_generate_answers_in_the_chat_template(smollm2, capsys):
    assert main(["generate", "Say hello.", "--set", "max_new_tokens=12", "--verifier", "int8"]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert "acceptance length" in printed.err
