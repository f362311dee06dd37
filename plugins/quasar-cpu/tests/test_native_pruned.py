"""A copy of the target with layers left out, on the backend: the same layers, the same weights, none of them twice."""

import kernels_needed  # noqa: F401
import pytest
import torch
from native_models import _COMMON, FAMILIES, model, text_of
from quasar_cpu.model import NativeModel
from test_native_backend import Models, loaded

from quasar.core.errors import ConfigError
from quasar.core.types import Draft
from quasar.drafters.pruned import Pruned
from quasar.models.session import Session
from quasar.verifiers.full import Full
from quasar.verifiers.pruned import Pruned as PrunedVerifier

NOTHING = Draft.empty(1)
every_kind = pytest.mark.parametrize("kind", [Pruned, PrunedVerifier])


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("QUASAR_HOME", str(tmp_path / "home"))


def last_logits(found):
    return Session(found, 1).forward([text_of(2, 40)], NOTHING)[0, 0]


@every_kind
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["last", "block_influence"])
def test_a_pruned_copy_is_the_one_on_torch(kind, family, method):
    models = Models(model(family))
    ours = loaded(kind, models, ratio=0.5, method=method)
    stock = kind(kind.Config(backend="torch", ratio=0.5, method=method))
    stock.load(models)
    assert isinstance(ours.model, NativeModel)
    assert ours.model.num_layers == stock.model.num_layers == 1
    assert ours.describe()["layers_kept"] == stock.describe()["layers_kept"]
    assert (ours.describe()["backend"], stock.describe()["backend"]) == ("native_cpu", "torch")
    torch.testing.assert_close(last_logits(ours.model), last_logits(stock.model), atol=2e-3, rtol=1e-3)
    whole = loaded(Full, models).model
    assert not torch.allclose(last_logits(ours.model), last_logits(whole), atol=0.1)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_weight_is_there_twice(kind, dtype):
    models = Models(model("llama-gqa", dtype))
    pruned, whole = loaded(kind, models, ratio=0.5), loaded(Full, models)
    target = models.target().storages()
    for each in (pruned, whole):
        new = [size for key, size in each.storages().items() if key not in target]
        assert all(size <= _COMMON["hidden_size"] * 4 for size in new)  # norms in float32, and no matrix
    assert len(pruned.storages().keys() & target.keys()) < len(whole.storages().keys() & target.keys())


@every_kind
def test_the_fastest_backend_of_the_whole_model_serves_its_copy(kind, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "quasar.models.backend_choice._fastest", lambda target, fitting: chosen.append(target) or "native_cpu"
    )
    models = Models(model("llama-gqa"))
    for _ in range(2):
        found = kind(kind.Config(ratio=0.5))
        found.load(models)
        assert isinstance(found.model, NativeModel)
    assert chosen == [models.target()]


def test_a_dtype_without_kernels_is_refused():
    with pytest.raises(ConfigError, match=r"backend 'native_cpu' cannot be used: it has kernels for bfloat16"):
        loaded(PrunedVerifier, Models(model("llama-gqa", torch.float16)), ratio=0.5)
