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
    assert list(stored["costs"]) == ["128", "256"]  # tokens of text; the tiny model holds 512
    assert list(stored["costs"]["128"]) == ["1", "2", "3", "4"]
    assert stored["costs"]["128"]["1"] == 1.0
    assert stored["carry_over"] is True
    assert stored["drafter"]["drafters"][1] == {"use": "recycling", "carry_over": False}
    assert arm["exact_match"] == 1.0


def test_a_resumed_run_uses_the_costs_that_it_began_with(run_file, tmp_path, monkeypatch):
    """The second time everything would cost something else, and then the drafts would be others."""
    run_file.write_text(
        run_file.read_text(encoding="utf-8")
        + "  adaptive: {drafter: {use: adaptive, max_nodes: 3, prior: 0.9, drafter: {use: ngram, short: pad}}}\n",
        encoding="utf-8",
    )
    out, timed = tmp_path / "out", []

    def clock_that_says(per_node):
        def times(model, ids, widths, clock):
            timed.append(per_node)
            return {width: [1 + per_node * (width - 1)] for width in widths}

        monkeypatch.setattr("quasar.drafters.scheduling.costs._time_forwards", times)
        monkeypatch.setattr("quasar.drafters.scheduling.costs._time_drafting", lambda *_: 0.001 * per_node)

    def run(folder, *more):
        assert main(["compare", str(run_file), "--output", str(folder), "--quiet", *more]) == 0
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        arm = next(arm for arm in results["arms"] if (arm["name"], arm["task"]) == ("adaptive", "overall"))
        lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
        return arm["drafter_description"], [line["drafted"] for line in lines if line["arm"] == "adaptive"]

    clock_that_says(0.01)
    costs, drafts = run(out)
    assert costs["costs"] == {length: {"1": 1.0, "2": 1.01, "3": 1.02, "4": 1.03} for length in ("128", "256")}
    samples = (out / "samples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (out / "samples.jsonl").write_text("".join(samples[: len(samples) // 2]), encoding="utf-8")
    clock_that_says(20.0)
    assert run(out, "--resume") == (costs, drafts)
    assert timed == [0.01, 0.01]
    assert run(tmp_path / "another")[1] != drafts


def test_costs_that_are_no_table_are_refused_by_their_key(run_file, capsys):
    run_file.write_text(
        run_file.read_text(encoding="utf-8") + "  adaptive: {drafter: {use: adaptive, drafter: ngram, costs: fast}}\n",
        encoding="utf-8",
    )
    assert main(["check", str(run_file)]) == 2
    assert (
        "pipelines.adaptive.drafter.costs: input should be a valid dictionary (got 'fast')." in capsys.readouterr().err
    )
