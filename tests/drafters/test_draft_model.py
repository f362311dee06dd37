"""Options, refusals and loading of draft models; rings of exactness and identity have files of their own."""

import pytest
import tokenizers
import torch
import transformers

from quasar.acceptors.stochastic import Stochastic
from quasar.core.config import PipelineSpec, validate
from quasar.core.engine import Engine, Request
from quasar.core.errors import CompositionError, ConfigError
from quasar.core.sampling import SamplingParams
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.universal import Universal
from quasar.models.session import Session
from quasar.pipelines.composition import compose
from quasar.pipelines.load import load_pipeline
from quasar.plugins.registry import load_registry
from quasar.testing import Letters, TinyModels, check_component
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8
from quasar.verifiers.pruned import Pruned

WORDS = ["<s>", "</s>", "<unk>", *(f"w{number}" for number in range(40))]


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (1, 1, 1, 1)),
        ({"num_speculative_tokens": 2}, (1, 1)),
        ({"num_speculative_tokens": 3, "num_drafts": 4}, (4, 1, 1)),
        ({"expansion": [3, 1, 2]}, (3, 1, 2)),
    ],
)
def test_options_give_the_shape_of_a_draft(options, shape):
    assert validate(DraftModel.Config, options, "here").shape() == shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_drafts": 2, "expansion": [2]}, "here: num_drafts and expansion are two shapes of a draft"),
        ({"expansion": [16, 16]}, "here: a draft should have at most 256 nodes"),
        ({"expansion": [2, 0]}, "here.expansion.1: input should be greater than or equal to 1"),
        ({"min_confidence": 1.1}, "here.min_confidence: "),
        ({"gamma": 3}, "Did you mean 'num_speculative_tokens'"),
        ({"model": "a", "target_copy": Int8()}, "here: model and target_copy both say what drafts"),
        ({"dtype": "float32", "target_copy": Int8()}, "here: dtype is an option of target_copy's verifier"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        validate(DraftModel.Config, options, "here")
    assert message in str(error.value)


def test_a_copy_is_written_as_a_verifier_is():
    drafter = {"use": "draft_model", "target_copy": {"use": "pruned", "ratio": 0.5, "method": "last"}}
    spec = validate(PipelineSpec, {"drafter": drafter}, "here")
    found = compose(spec, load_registry(), SamplingParams(), "here").drafter
    assert isinstance(found.config.target_copy, Pruned)
    assert found.config.target_copy.config.ratio == 0.5
    found.load(TinyModels())
    assert found.model.num_layers == 2  # half of three, rounded up
    assert found.describe()["layers_kept"] == [0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"model": "other", "num_drafts": 3, "num_speculative_tokens": 3},
        {"model": "other", "expansion": (2, 2)},
        {"model": "other", "min_confidence": 0.5},
        {"model": "other", "next_distributions": True},
        {
            "model": "other",
            "next_distributions": True,
            "num_drafts": 2,
            "num_speculative_tokens": 2,
            "min_confidence": 0.3,
        },
    ],
)
def test_the_conformance_kit_passes(options):
    check_component(DraftModel, models=TinyModels(), **options)


# --- tokenizers -------------------------------------------------------------------------------------------------------


class Named(TinyModels):
    """The target has the letters ``abcdefg``; other models have those that their name says."""

    def tokenizer(self, name=None):
        return Letters() if name is None else Letters(name)


@pytest.mark.parametrize("name", ["abcdefg", "abcdefgh", "abcde"])
def test_tokenizers_that_agree_where_both_have_a_token_are_the_same(name):
    drafter, models = DraftModel(DraftModel.Config(model=name)), Named()
    drafter.load(models)
    assert drafter.model is models.other(name)


def test_another_tokenizer_is_refused_with_both_sizes_and_a_remedy():
    with pytest.raises(CompositionError) as error:
        DraftModel(DraftModel.Config(model="abdc")).load(Named())
    assert str(error.value) == (
        "drafter 'draft_model': 'abdc' has another tokenizer than the target (4 and 7 tokens; id 2 is 'd' and 'c'); "
        "use drafter 'universal' for it."
    )


# --- models from folders ----------------------------------------------------------------------------------------------


def folder(path, words, layers, seed):
    """A model and a tokenizer of whole words."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(words) + 5, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).double().save_pretrained(path)
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    shuffled = [*WORDS[:3], *reversed(WORDS[3:])]
    return {
        "target": folder(path / "target", WORDS, 4, seed=1),
        "small": folder(path / "small", WORDS, 1, seed=2),
        "shuffled": folder(path / "shuffled", shuffled, 1, seed=3),
    }


PROMPTS = ["w3 w4 w5 w3 w4", "w7"]


def run(folders, drafter, temperature=0.0, acceptor="stochastic"):
    pipeline = load_pipeline(folders["target"], drafter=drafter, acceptor=acceptor, device="cpu", quiet=True)
    done = pipeline.generate(PROMPTS, temperature=temperature, max_new_tokens=16, ignore_eos=True)
    return pipeline.composition.drafter, [one.generation.token_ids for one in done], done


@pytest.mark.parametrize(("temperature", "acceptor"), [(0.0, "stochastic"), (1.0, "coupled")])
@pytest.mark.parametrize(
    "drafter",
    [
        {"use": "draft_model", "model": "small", "num_drafts": 2},
        {"use": "draft_model", "target_copy": {"use": "int8", "backend": "reference"}},
        {"use": "pruned", "ratio": 0.5},
        {"use": "universal", "model": "shuffled"},
    ],
    ids=lambda drafter: drafter["use"],
)
def test_models_from_folders_draft_and_leave_the_text_as_it_is(folders, drafter, temperature, acceptor):
    drafter = {key: folders.get(value, value) if isinstance(value, str) else value for key, value in drafter.items()}
    _, expected, _ = run(folders, "none", temperature)
    _, found, outputs = run(folders, drafter, temperature, acceptor)
    assert found == expected
    assert sum(one.generation.num_drafted for one in outputs) > 0


def test_a_draft_model_with_another_tokenizer_is_refused_before_its_weights_are_read(folders, monkeypatch):
    monkeypatch.setattr("quasar.hf.loading.load_model", lambda source, *_: pytest.fail(f"{source.name} was read"))
    with pytest.raises(CompositionError, match=r"\(43 and 43 tokens; id 3 is 'w39' and 'w0'\)"):
        DraftModel(DraftModel.Config(model=folders["shuffled"])).load(models(folders))


def models(folders):
    from quasar.hf import loading

    return loading.LoadedModels(loading.find_model(folders["target"]), "cpu")


def test_a_model_is_loaded_once_under_any_of_its_dtypes(folders):
    provider = models(folders)
    assert provider.other(folders["target"]) is provider.target("float64")
    assert provider.other(folders["small"]) is provider.other(folders["small"], "float64")
    assert provider.other(folders["small"], "float32").dtype == torch.float32
    assert provider.tokenizer(folders["small"]) is provider.tokenizer(folders["small"])


def test_a_draft_model_that_is_not_there_is_named(folders):
    with pytest.raises(ConfigError, match=r"folder '\./nowhere' does not exist"):
        run(folders, {"use": "draft_model", "model": "./nowhere"})


def test_what_the_other_model_reads_begins_once(folders):
    provider = models(folders)
    drafter = Universal(Universal.Config(model=folders["shuffled"]))
    drafter.load(provider)
    read, forward = [], Session.forward

    def watched(session, texts, draft):
        if session._model is drafter.model:
            read.append(list(texts[0]))
        return forward(session, texts, draft)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "forward", watched)
        verifier = Full()
        verifier.load(provider)
        request = Request([0, 6, 7], SamplingParams(max_new_tokens=8, ignore_eos=True))
        (done,) = Engine(drafter, verifier, Stochastic()).generate([request])
    own = provider.tokenizer(folders["shuffled"]).tokens()
    known = [0, own["w3"], own["w4"], *(own[WORDS[token]] for token in done.token_ids if token < len(WORDS))]
    committed = [ids for ids in read if ids == known[: len(ids)]]
    assert len(committed) >= 3
    assert max(map(len, committed)) > 4


def test_universal_needs_only_text():
    class Upside(TinyModels):
        """The other model has the letters in another order."""

        def tokenizer(self, name=None):
            return Letters() if name is None else Letters("gfedcba")

    check_component(Universal, models=Upside(), model="other")
