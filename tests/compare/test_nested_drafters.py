"""Drafters inside drafters in a comparison: options from the command line, and what is stored of them."""

import json

from quasar.cli import main


def test_costs_and_carry_over_are_stored_with_the_results(run_file, tmp_path):
    run_file.write_text(
        run_file.read_text(encoding="utf-8")
        + "  adaptive: {drafter: {use: adaptive, max_nodes: 3, drafter: {use: union, drafters: [suffix, recycling]}},"
        " exact: true}\n",
        encoding="utf-8",
    )
    carried = "pipelines.adaptive.drafter.carry_over=true"
    smaller = "pipelines.adaptive.drafter.drafter.max_nodes=5"
    assert main(["compare", str(run_file), "--output", str(tmp_path / "out"), "--quiet",
                 "--set", carried, "--set", smaller]) == 0  # fmt: skip
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    written = results["environment"]["configuration"]["pipelines"]["adaptive"]["drafter"]
    assert (written["carry_over"], written["drafter"]["max_nodes"]) == (True, 5)
    assert [part["use"] for part in written["drafter"]["drafters"]] == ["suffix", "recycling"]
    arm = next(arm for arm in results["arms"] if (arm["name"], arm["task"]) == ("adaptive", "overall"))
    stored = arm["drafter_description"]
    assert list(stored["costs"]) == ["1", "2", "3", "4"]
    assert stored["costs"]["1"] == 1.0
    assert stored["carry_over"] is True
    assert stored["drafter"]["drafters"][1] == {"use": "recycling", "carry_over": False}
    assert arm["exact_match"] == 1.0
