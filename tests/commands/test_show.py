"""``quasar show`` and ``quasar ls -v``: what they say, and that every example composes and plays."""

import json
import re

import pytest
import yaml

from quasar.cli import main
from quasar.compare.config import load_run
from quasar.core.config import PipelineSpec, validate
from quasar.core.sampling import SamplingParams
from quasar.pipelines.composition import compose
from quasar.pipelines.open_model import open_model
from quasar.plugins.describe_component import describe_component
from quasar.plugins.registry import load_registry
from tests.shared.tiny_folder import save_tiny_model

REGISTRY = load_registry()
KINDS = ("drafter", "verifier", "acceptor")
BUILT_IN = [entry for kind in KINDS for entry in REGISTRY.entries(kind) if entry.source.is_builtin]
NEED_SOMETHING = {"retrieval": "a datastore", "universal": "another model"}

every = pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: f"{entry.kind} {entry.name}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return open_model(str(save_tiny_model(tmp_path_factory.mktemp("tiny"))), REGISTRY, "cpu", quiet=True)


def shown(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


# --- every component --------------------------------------------------------------------------------------------------


@every
def test_an_example_is_a_file_that_can_be_compared(entry, tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(describe_component(entry, REGISTRY).example, encoding="utf-8")
    run = load_run(file, with_data=False, registry=REGISTRY)
    assert getattr(run.arm(entry.name).composition, entry.kind).name == entry.name


@every
def test_an_example_plays(entry, tiny):
    if entry.name in NEED_SOMETHING:
        pytest.skip(f"it needs {NEED_SOMETHING[entry.name]}")
    [raw] = yaml.safe_load(describe_component(entry, REGISTRY).example)["pipelines"].values()
    sampling = SamplingParams(max_new_tokens=6)
    pipeline = tiny.pipeline(compose(validate(PipelineSpec, raw, "here"), REGISTRY, sampling, "here"))
    assert len(pipeline.generate("abc abc abc", sampling).generation.token_ids) >= 1


@every
def test_a_page_says_everything_in_words(entry):
    page = describe_component(entry, REGISTRY)
    assert page.summary
    assert (page.distribution, page.kind, page.name) == ("quasar-spec", entry.kind, entry.name)
    assert {option.name for option in page.options} >= set(entry.value.Config.model_fields)
    for option in page.options:
        assert option.description.endswith("."), option
        assert not re.search(r"[\[\]A-Z]|typing|quasar\.", option.type), option


# --- what is said -----------------------------------------------------------------------------------------------------


def test_an_option_has_type_bounds_default_and_description(capsys):
    text = shown(capsys, "show", "suffix")
    assert text.startswith("drafter suffix  [quasar-spec ")
    assert "  factor: number > 0 and ≤ 64 (default 1.0)\n      Draft tokens for each token of the match.\n" in text
    assert "  prefer: frequent or recent (default frequent)\n" in text
    assert "  corpus: path or null (default null)\n" in text
    assert "source: SuffixDecoding (Oliaro et al., arXiv 2411.04975)" in text
    assert "matched: true" in text
    assert "  pipelines:\n    suffix:\n      drafter: suffix\n      verifier: full\n" in text


def test_mappings_inside_an_option_are_told(capsys):
    [page] = json.loads(shown(capsys, "show", "routed", "--kind", "verifier", "--json"))
    told = {option["name"]: option for option in page["options"]}
    assert told["arms"]["type"] == "verifiers (fp8, full, int4, int8 or pruned) by name (1 or more)"
    assert (told["arms"]["default"], told["policy"]["type"]) == (None, "specquant, length or bandit")
    assert told["policy.low"] == {
        "name": "policy.low", "type": "integer ≥ 0", "default": "7",
        "description": "With policy length: most words of a simple prompt.", "second_names": [],
    }  # fmt: skip
    assert "policy.use" not in told


def test_of_several_kinds_all_are_shown_or_the_one_that_is_asked_for(capsys):
    assert [page["kind"] for page in json.loads(shown(capsys, "show", "pruned", "--json"))] == ["drafter", "verifier"]
    assert "\n\nverifier pruned  [" in shown(capsys, "show", "pruned")
    assert shown(capsys, "show", "pruned", "--kind", "verifier").startswith("verifier pruned  [")


def test_a_model_is_shown_without_options(capsys):
    text = shown(capsys, "show", "smollm2-135m")
    assert text.startswith("model smollm2-135m  [quasar-spec ")
    assert "options" not in text


def test_an_unknown_name_is_one_line(refused):
    assert refused("show", "ngrm").startswith("quasar: error: unknown name 'ngrm'. Did you mean 'ngram'? Available: ")
    line = refused("show", "ngram", "--kind", "verifier")
    assert line.startswith("quasar: error: unknown verifier 'ngram'. Available: fp8, ")


PLUGIN = '''
from typing import Annotated, Literal

from pydantic import Field

from quasar import Draft, Drafter, hookimpl


class Odd(Drafter):
    """Drafts oddly.

    More of it.

    Source: nobody.

    Args:
        config: options.
    """

    name = "odd"
    second_names = ("strange",)
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        second_names = {"number": "count"}

        count: int = Field(ge=1, description="How many.")
        sizes: tuple[Annotated[int, Field(ge=1, le=9)], ...] = Field((1, 2), description="Sizes.")
        ways: list[Literal["a", "b"]] = Field(["a"], max_length=2, description="Ways.")
        table: dict[int, float] = Field({}, description="A table.")
        word: str = Field("x | y", min_length=1, description="A word.")

    def propose(self, context, budget):
        return Draft.empty(context.batch)


@hookimpl
def quasar_drafters():
    return [Odd]
'''


def test_a_local_file_is_shown_by_an_earlier_name_too(tmp_path, capsys):
    file = tmp_path / "odd.py"
    file.write_text(PLUGIN, encoding="utf-8")
    [page] = json.loads(shown(capsys, "show", "strange", "--plugin", str(file), "--json"))
    assert (page["name"], page["second_names"], page["distribution"]) == ("odd", ["strange"], str(file))
    assert (page["text"], page["source"], page["example"]) == ("More of it.", "nobody.", None)
    assert {option["name"]: (option["type"], option["default"]) for option in page["options"]} == {
        "count": ("integer ≥ 1", None),
        "sizes": ("list of integers 1..9", "[1, 2]"),
        "ways": ("list of a or b (2 at most)", "[a]"),
        "table": ("mapping from integers to numbers", "{}"),
        "word": ("text (not empty)", "x | y"),
    }
    text = shown(capsys, "show", "odd", "--plugin", str(file))
    assert "no example: its class gives none for count" in text
    assert "How many. Earlier names: number." in text
    assert "earlier names: strange" in text


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_ls_shows_pages_of_all_if_asked(capsys):
    text = shown(capsys, "ls", "acceptors", "-v")
    for entry in REGISTRY.entries("acceptor"):
        assert f"acceptor {entry.name}  [" in text
    pages = json.loads(shown(capsys, "ls", "acceptors", "-v", "--json"))
    lines = json.loads(shown(capsys, "ls", "acceptors", "--json"))
    assert [page["name"] for page in pages] == [line["name"] for line in lines]
    assert "options" not in lines[0]
    assert all("options" in page for page in pages)
