"""The worked examples of docs/plugins.md keep the contract, play in pipelines, and use the author's API only."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from quasar import cli, core, load_pipeline
from quasar.plugins import hooks
from quasar.plugins.registry import load_registry
from quasar.testing import Fault, TinyModels, conformance_report

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
FILES = {found[1]: text for _, text in BLOCKS if (found := re.match(r"# (\w+\.py)\n", text))}
RUNS = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
AUTHORS = {"quasar", "quasar.core", "quasar.core.trees", "quasar.models", "quasar.acceptors.rules", "quasar.testing"}

MISTAKES = {
    "a budget that is not looked at": (
        "branches.py",
        "speculative_tokens, limit)",
        "speculative_tokens, 99)",
        "FINISHED",
    ),
    "a verifier that looks at the draft": ("fresh.py", "*path][-window:]", "*draft.rows[index][0]]", "NEIGHBOURS"),
    "a rule that keeps the whole target": ("barker.py", "target - share * drafted", "target", "EXACTNESS"),
}


def component_of(folder, name, text=None):
    """Return the class that an example registers, from a file of it."""
    file = folder / name
    file.write_text(FILES[name] if text is None else text, encoding="utf-8")
    registry = load_registry([file])
    kinds = ("drafter", "verifier", "acceptor")
    [entry] = [each for kind in kinds for each in registry.listing(kind) if each.distribution == str(file)]
    return registry.find(entry.kind, entry.name)


def faults(component):
    return conformance_report(component, models=TinyModels() if component.kind == "verifier" else None)


def test_classes_beside_the_files_keep_the_contract():
    names = {"__name__": "page"}
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "plugins.md", "exec"), names)
    for name in ("Small", "Contrast"):
        assert conformance_report(names[name], models=TinyModels()) == [], name


def test_there_is_an_example_of_each_kind(tmp_path):
    found = [component_of(tmp_path, name) for name in FILES]
    assert {each.drafts_by for each in found if each.kind == "drafter"} == {"point_mass", "sampled"}
    assert {each.exact for each in found if each.kind == "acceptor"} == {True, False}
    assert [each.kind for each in found].count("verifier") == 1


@pytest.mark.parametrize("name", FILES)
def test_an_example_keeps_the_contract(name, tmp_path):
    assert faults(component_of(tmp_path, name)) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_kit_sees_what_the_page_warns_of(mistake, tmp_path):
    name, right, wrong, fault = MISTAKES[mistake]
    assert right in FILES[name]
    lines = faults(component_of(tmp_path, name, FILES[name].replace(right, wrong)))
    assert [line.partition(":")[0] for line in lines] == [Fault[fault]]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "+".join(run["pipelines"]))
def test_an_example_plays_in_a_pipeline(run, tmp_path, tiny_model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in run["plugins"]:
        Path(name).write_text(FILES[name], encoding="utf-8")
    Path("run.yaml").write_text(yaml.safe_dump({**run, "model": str(tiny_model)}), encoding="utf-8")
    assert cli.main(["check", "run.yaml", "--run"]) == 0, capsys.readouterr()
    for arm, parts in run["pipelines"].items():
        pipeline = load_pipeline(str(tiny_model), plugins=run["plugins"], quiet=True, **parts)
        texts = pipeline.generate(["a b a b a", "abcabc"], max_new_tokens=12, **run.get("sampling", {}))
        assert all(each.generation.token_ids for each in texts), arm


def test_every_example_is_named_in_a_run():
    assert {name for run in RUNS for name in run["plugins"]} == FILES.keys()


def test_examples_import_what_authors_may():
    for text in (text for language, text in BLOCKS if language == "python"):
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        modules = {node.module for node in nodes if node.module.startswith("quasar")}
        assert modules <= AUTHORS, text


def test_the_page_names_every_fault_hook_and_trait():
    traits = {name for base in ("Drafter", "Verifier", "Acceptor") for name in getattr(core, base).__annotations__}
    for name in {*Fault, *(each for each in vars(hooks) if each.startswith("quasar_")), *traits} - {
        "kind",
        "earlier_names",
    }:  # which are ours to set
        assert f"`{name}" in PAGE, name
