import pytest
from pydantic import BaseModel, ConfigDict

from quasar.core.components import Drafter, Verifier
from tests.shared.plugin_fakes import Fair, Fine, Good, Tiny, failure, named, plugin, registry_of, source


@pytest.fixture(autouse=True)
def _no_allow_list(monkeypatch):
    monkeypatch.delenv("QUASAR_PLUGINS", raising=False)


class Lacking(Drafter):
    name = "lacking"
    drafts_by = "point_mass"


class Loose(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AllowsExtra(Drafter.Config):
    model_config = ConfigDict(extra="ignore")


FAULTS = {
    "an object": ("drafter", lambda: Good(), "expected a drafter class, got an object of class Good"),
    "a function": (
        "drafter",
        lambda: plugin,
        "expected a drafter class, got an object of class func",
    ),
    "a foreign class": ("drafter", lambda: named(object, "x"), "class X is not a subclass of Drafter"),
    "another kind": ("acceptor", lambda: Good, "class Good is not a subclass of Acceptor"),
    "no propose": ("drafter", lambda: Lacking, "class Lacking lacks propose(self, context, budget)"),
    "too few": (
        "drafter",
        lambda: named(Good, "x", propose=lambda self, context: None),
        "class X has propose(self, context); the contract is propose(self, context, budget)",
    ),
    "too many": (
        "drafter",
        lambda: named(Good, "x", propose=lambda self, context, budget, extra: None),
        "class X has propose(self, context, budget, extra); the contract is propose(self, context, budget)",
    ),
    "keyword only": (
        "drafter",
        lambda: named(Good, "x", propose=lambda self, context, *, budget: None),
        "class X has propose(self, context, *, budget); the contract is propose(self, context, budget)",
    ),
    "static": (
        "drafter",
        lambda: named(Good, "x", propose=staticmethod(lambda context: None)),
        "class X has propose(context); the contract is propose(self, context, budget)",
    ),
    "not a method": (
        "drafter",
        lambda: named(Good, "x", propose=3),
        "class X has propose = 3; the contract is propose(",
    ),
    "verify": (
        "verifier",
        lambda: named(Fine, "x", verify=lambda self, draft: None),
        "class X has verify(self, draft); the contract is verify(self, context, draft)",
    ),
    "max_length": (
        "verifier",
        lambda: named(Fine, "x", max_length=lambda self, context: None),
        "class X has max_length(self, context); the contract is max_length(self)",
    ),
    "accept": (
        "acceptor",
        lambda: named(Fair, "x", accept=lambda self, verification, context, budget: None),
        "has accept(self, verification, context, budget); the contract is accept(self, verification, context)",
    ),
    "init": (
        "drafter",
        lambda: named(Good, "x", __init__=lambda self: None),
        "class X has __init__(self); the contract is __init__(self, config=None)",
    ),
    "load": (
        "drafter",
        lambda: named(Good, "x", load=lambda self: None),
        "class X has load(self); the contract is load(self, models)",
    ),
    "config not ours": (
        "drafter",
        lambda: named(Good, "x", Config=Loose),
        "X.Config must be a subclass of Component.Config",
    ),
    "config no class": ("drafter", lambda: named(Good, "x", Config={}), "X.Config must be a subclass"),
    "config extra": ("drafter", lambda: named(Good, "x", Config=AllowsExtra), "X.Config must keep extra='forbid'"),
    "drafts_by": (
        "drafter",
        lambda: named(Good, "x", drafts_by="gumbel"),
        "class X drafts by or takes 'gumbel'; known are none, point_mass, sampled",
    ),
    "takes": (
        "acceptor",
        lambda: named(Fair, "x", takes=frozenset({"sampled", "maybe"})),
        "class X drafts by or takes 'maybe'; known are none, point_mass, sampled",
    ),
    "takes that is one word": (
        "acceptor",
        lambda: named(Fair, "x", takes="sampled"),
        "class X has takes = 'sampled'; make it a frozenset of such words",
    ),
    "drafts_by that is no text": ("drafter", lambda: named(Good, "x", drafts_by=[]), "TypeError: unhashable"),
    "precision": (
        "verifier",
        lambda: type("X", (Verifier,), {"name": "x", "verify": Fine.verify}),
        "class X cannot state its traits: AttributeError: type object 'X' has no attribute 'precision'",
    ),
    "model fetch": ("model", lambda: named(Tiny, "x", fetch=None)(), "needs a method fetch(quiet)"),
    "model fetch arguments": (
        "model",
        lambda: named(Tiny, "x", fetch=lambda self: 1)(),
        "needs a method fetch(quiet)",
    ),
    "model summary": ("model", lambda: named(Tiny, "x", summary=None)(), "a built-in model needs a `summary`, X has"),
    "model name": ("model", lambda: named(Tiny, "")(), "a built-in model needs a `name`"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_broken_class_breaks_nothing_but_itself(case):
    kind, make, expected = FAULTS[case]
    item = make()
    sound = {"drafter": Good, "verifier": Fine, "acceptor": Fair, "model": Tiny()}[kind]
    sound = named(type(sound), "sound")() if kind == "model" else named(sound, "sound")
    registry = registry_of(source(plugin(**{f"{kind}s": [item, sound]}), "mixed-dist", name="mixed"))
    found = {line.name: line for line in registry.listing(kind)}
    assert found.pop("sound").error is None
    ((name, line),) = found.items()
    assert expected in line.error
    assert line.error.startswith(f"{kind} {name!r} of entry point 'mixed = pkg.module' of mixed-dist 1.0: ")
    assert (line.kind, line.summary, line.traits) == (kind, "", {})
    if kind == "model":
        assert failure(registry.model, name) == line.error
    else:
        assert failure(registry.find, kind, name) == line.error
        assert registry.find(kind, "sound") is sound


@pytest.mark.parametrize("name", [None, "", "  ", 7])
def test_a_name_must_be_text(name):
    nameless = type("Nameless", (Good,), {"name": name})
    (line,) = registry_of(plugin(drafters=[nameless])).listing()
    assert line.name == "Nameless"
    assert "class Nameless needs a `name`" in line.error


def test_extra_optional_parameters_and_other_spellings_of_a_method_are_accepted():
    def propose(self, *arguments, **options):
        raise NotImplementedError

    def with_default(self, context, budget, greedy=False):
        raise NotImplementedError

    classes = [
        named(Good, "variadic", propose=propose),
        named(Good, "default", propose=with_default),
        named(Good, "static", propose=staticmethod(lambda context, budget: None)),
        named(Good, "class", propose=classmethod(lambda cls, context, budget: None)),
        named(Good, "own-init", __init__=lambda self, config: None),
    ]
    assert all(line.error is None for line in registry_of(plugin(drafters=classes)).listing())


def test_earlier_names_of_traits_and_methods_mean_todays_and_say_so():
    with pytest.warns(DeprecationWarning, match="class Old: 'law' is called 'drafts_by' now"):
        drafter = type("Old", (Drafter,), {"name": "old", "__doc__": "Old.", "law": "sampled", "propose": Good.propose})
    with pytest.warns(DeprecationWarning, match="'laws' is called 'takes' now"):
        acceptor = named(Fair, "old", laws=frozenset({"sampled"}))
    with pytest.warns(DeprecationWarning, match="'meet' is called 'attach_verifier' now"):
        meets = named(Good, "old", meet=lambda self, verifier: "met")
    registry = registry_of(plugin(drafters=[drafter], acceptors=[acceptor]))
    lines = [line for line in registry.listing() if line.name == "old"]
    assert [line.error for line in lines] == [None, None]
    assert lines[0].traits["drafts_by"] == "sampled"
    assert lines[1].traits["takes"] == ["sampled"]
    assert meets().attach_verifier(None) == "met"
