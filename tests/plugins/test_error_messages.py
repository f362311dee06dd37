"""One test for each kind of error: what a user did, through the public API, and the one line that answers it."""

import re

import pytest
import torch
import transformers

from quasar import load_pipeline
from quasar.core.errors import (
    CapacityError,
    CompositionError,
    ConfigError,
    ContractError,
    PluginError,
    QuasarError,
    UnsupportedModelError,
)  # fmt: skip
from tests.shared.tiny_folder import save_tiny_model

PARTS = '''
"""Components that break their word."""
import torch
from quasar import Acceptance, Acceptor, Draft, Drafter, hookimpl


class Babbler(Drafter):
    """Proposes an id that does not exist."""

    name, drafts_by = "babbler", "point_mass"

    def propose(self, context, budget):
        return Draft.chains([[999]] * context.batch)


class Eager(Drafter):
    """Proposes more than there is room for."""

    name, drafts_by = "eager", "point_mass"

    def propose(self, context, budget):
        return Draft.chains([[1] * (limit + 1) for limit in budget])


class Shy(Drafter):
    """Samples, and does not say from what."""

    name, drafts_by = "shy", "sampled"

    def propose(self, context, budget):
        return Draft.chains([[1]] * context.batch)


class Greedier(Acceptor):
    """Accepts more than was drafted."""

    name, takes, exact = "greedier", frozenset({"none", "point_mass"}), True

    def accept(self, verification, context):
        count = torch.full((context.batch,), 7)
        return Acceptance(torch.zeros((context.batch, verification.draft.nodes), dtype=torch.int64), count, count)


class Choosy(Acceptor):
    """Takes sampled drafts only."""

    name, takes, exact = "choosy", frozenset({"sampled"}), True

    def accept(self, verification, context):
        raise NotImplementedError


@hookimpl
def quasar_drafters():
    return [Babbler, Eager, Shy]


@hookimpl
def quasar_acceptors():
    return [Greedier, Choosy]
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model):
    """Return a folder with everything that may go wrong in it; ``{tiny}`` and ``{here}`` below are filled in from it."""
    here = tmp_path_factory.mktemp("errors")
    (here / "parts.py").write_text(PARTS, encoding="utf-8")
    (here / "raises.py").write_text("raise ImportError('libmagic is missing')\n", encoding="utf-8")
    (here / "twin.py").write_text(PARTS.replace('"babbler"', '"ngram"'), encoding="utf-8")
    (here / "empty").mkdir()
    save_tiny_model(here / "short", max_length=32)
    transformers.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=11).save_pretrained(here / "mamba")
    transformers.T5Config(d_model=16, num_layers=1, vocab_size=11).save_pretrained(here / "t5")
    return here


CASES = {
    "a parameter's name": (
        ConfigError, {}, {"max_token": 3},
        "generate.max_token: unknown key. Did you mean 'max_new_tokens'?*",
    ),
    "a parameter's value": (
        ConfigError, {}, {"temperature": -1.0}, "generate.temperature: input should be greater than or equal to 0 (got -1.0).",
    ),
    "an option of a component": (
        ConfigError, {"drafter": {"use": "ngram", "num_speculative_token": 3}}, {},
        "load_pipeline.drafter.num_speculative_token: unknown key. Did you mean 'num_speculative_tokens'?*",
    ),
    "a device": (ConfigError, {"device": "cuda"}, {}, "device: 'cuda' was asked for, * use 'cpu' or 'auto'."),
    "a folder without a model": (ConfigError, {"model": "{here}/empty"}, {}, "model: '{here}/empty' is not a model*"),
    "an id outside the vocabulary": (
        ConfigError, {}, {"suppress_tokens": [257]},
        "sampling: token id 257 is outside the model's vocabulary of 257.",
    ),
    "nothing to continue": (ConfigError, {}, {"prompt": "", "chat": False}, "prompt '0' has no tokens; give it *"),
    "an unknown component": (
        PluginError, {"drafter": "ngrm"}, {}, "unknown drafter 'ngrm'. Did you mean 'ngram'? Available: *",
    ),
    "a plugin that does not load": (
        PluginError, {"plugins": ["{here}/raises.py"]}, {}, "file {here}/raises.py: ImportError: libmagic is missing",
    ),
    "a name that is taken": (
        PluginError, {"plugins": ["{here}/twin.py"]}, {}, "drafter 'ngram' of file {here}/twin.py: the name belongs to a built-in; give it another name",
    ),
    "a rule for temperature 0": (
        CompositionError, {"acceptor": "greedy"}, {"temperature": 0.5},
        "acceptor 'greedy' works at temperature 0 only, and the temperature is 0.5; use 'stochastic'.",
    ),
    "drafts that the acceptor does not take": (
        CompositionError, {"plugins": ["{here}/parts.py"], "acceptor": "choosy"}, {},
        "load_pipeline: drafter 'ngram' drafts by 'point_mass', and acceptor 'choosy' takes sampled only.",
    ),
    "exact and relaxed": (
        CompositionError, {"acceptor": "typical", "exact": True}, {},
        "load_pipeline: 'exact: true' cannot be kept: acceptor 'typical' is relaxed; use 'stochastic'.",
    ),
    "a draft of unknown ids": (
        ContractError, {"plugins": ["{here}/parts.py"], "drafter": "babbler"}, {},
        "drafter 'babbler' returned a bad draft: token_ids should be within 0..256, got [999] in row 0.",
    ),
    "a draft that is too long": (
        ContractError, {"plugins": ["{here}/parts.py"], "drafter": "eager"}, {"max_new_tokens": 4},
        "drafter 'eager' returned a bad draft: its longest path should be within the row's budget of 2, got 3 in row 0.",
    ),
    "a distribution that is missing": (
        ContractError, {"plugins": ["{here}/parts.py"], "drafter": "shy"}, {},
        "drafter 'shy' returned a bad draft: trials should be present, because it drafts by 'sampled', got none.",
    ),
    "an impossible acceptance": (
        ContractError, {"plugins": ["{here}/parts.py"], "acceptor": "greedier"}, {},
        "acceptor 'greedier' accepted 7 tokens on a path of 0.",
    ),
    "a prompt that is too long": (
        CapacityError, {"model": "{here}/short"}, {"prompt": "x" * 40, "chat": False},
        "prompt '0' has 40 tokens, and the model holds 32 with at least one new one; shorten the prompt or*",
    ),
    "a state that cannot be rewound": (
        UnsupportedModelError, {"model": "{here}/mamba"}, {},
        "model '{here}/mamba' is a MambaForCausalLM*: its state cannot be rewound after a rejected draft.",
    ),
    "an encoder": (
        UnsupportedModelError, {"model": "{here}/t5"}, {}, "model '{here}/t5' (T5Config) is not a causal decoder.",
    ),
}  # fmt: skip
"""What is wrong: the kind of error, arguments of ``load_pipeline`` and ``generate``, and the line (* for anything)."""


def filled(value, here):
    """Return ``value`` with the folder's path in it."""
    if isinstance(value, list):
        return [filled(item, here) for item in value]
    return value.replace("{here}", str(here)) if isinstance(value, str) else value


def provoke(case, place, tiny_model):
    """Do what the case says, by the two calls that a user makes."""
    _, loading, generating, _ = CASES[case]
    options = {"model": str(tiny_model), **{key: filled(value, place) for key, value in loading.items()}}
    pipeline = load_pipeline(**options, quiet=True)
    wanted = {"prompt": "abc", "ignore_eos": True, **generating}
    pipeline.generate(wanted.pop("prompt"), **wanted)


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_in_one_line_what_is_wrong(case, place, tiny_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # one case asks for what is not there
    kind, _, _, line = CASES[case]
    with pytest.raises(QuasarError) as found:
        provoke(case, place, tiny_model)
    assert type(found.value) is kind
    pattern = ".*".join(map(re.escape, filled(line, place).split("*")))
    assert re.fullmatch(pattern, str(found.value)), f"\n{found.value}\n{pattern}"  # . stops at a line break


def test_every_kind_of_the_tree_has_a_case():
    tree = {kind for kind in QuasarError.__subclasses__() if kind.__module__ == QuasarError.__module__}
    assert tree == {kind for kind, *_ in CASES.values()}
