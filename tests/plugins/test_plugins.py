import argparse
import types

import pytest

from quasar import hookimpl
from quasar.core.backends import Backend, Built
from quasar.core.components import Drafter, Verifier
from quasar.plugins import hooks as hookspecs
from quasar.plugins.registry import HOOKS, KINDS
from tests.shared.plugin_fakes import Fair, Fine, Good, Tiny, failure, named, plugin, registry_of, source

RECORD = object()  # a StepRecord goes through untouched


@pytest.fixture(autouse=True)
def _no_allow_list(monkeypatch):
    monkeypatch.delenv("QUASAR_PLUGINS", raising=False)


def lines(registry, kind=None):
    return {line.name: line for line in registry.listing(kind)}


def broken(*plugins):
    """Return the error of the first plugin, after checking that a sound plugin beside it goes on working."""
    registry = registry_of(*plugins, source(plugin(drafters=[named(Good, "bystander")]), "bystander-dist"))
    errors = [line.error for line in registry.listing() if line.error is not None]
    assert len(errors) == 1
    assert "\n" not in errors[0]
    assert registry.find("drafter", "bystander").name == "bystander"
    return errors[0]


class Abacus(Backend):
    """Beads on wires."""

    name = "abacus"

    @classmethod
    def unusable(cls):
        return None

    @classmethod
    def refuses(cls, model):
        return None

    @classmethod
    def build(cls, model, precision, *, quantize_lm_head=False, keep=(), activation_bits=8):
        return Built(model, cls.name)


class Unfinished(Backend):
    name = "unfinished"


class TestHooks:
    def test_hook_quasar_drafters(self):
        registry = registry_of(source(plugin(drafters=[Good]), "good-dist", "2.1"))
        assert registry.find("drafter", "good") is Good
        (line,) = registry.listing()
        assert (line.name, line.kind, line.summary) == ("good", "drafter", "Drafts well.")
        assert (line.traits, line.distribution, line.version) == (
            {"drafts_by": "point_mass", "next_distributions": False, "matched": False},
            "good-dist",
            "2.1",
        )
        assert line.error is None

    def test_hook_quasar_verifiers(self):
        registry = registry_of(plugin(verifiers=[Fine]))
        assert registry.find("verifier", "fine") is Fine
        assert lines(registry)["fine"].traits == {"precision": "full"}

    def test_hook_quasar_acceptors(self):
        registry = registry_of(plugin(acceptors=(each for each in [Fair])))  # any iterable will do
        assert registry.find("acceptor", "fair") is Fair
        assert lines(registry)["fair"].traits["takes"] == ["none", "point_mass"]

    def test_hook_quasar_backends(self):
        registry = registry_of(plugin(backends=[Abacus, Unfinished]))
        assert registry.backends() == (Abacus,)
        shown = {line.name: line for line in registry.listing("backend")}
        assert shown["abacus"].summary == "Beads on wires."
        assert "lacks build, refuses, unusable" in next(line.error for line in shown.values() if line.error)

    def test_hook_quasar_models(self):
        model = Tiny()
        registry = registry_of(plugin(models=[model]))
        assert registry.model("tiny") is model
        assert registry.model("some/hub-id") is None
        assert (lines(registry)["tiny"].kind, lines(registry)["tiny"].summary) == ("model", "A tiny model.")

    def test_hook_quasar_commands(self):
        def quasar_commands(subparsers):
            subparsers.add_parser("hello").set_defaults(run=lambda arguments: "hello")

        parser = argparse.ArgumentParser()
        registry_of(plugin(quasar_commands)).add_commands(parser.add_subparsers())
        arguments = parser.parse_args(["hello"])
        assert arguments.run(arguments) == "hello"

    def test_hook_quasar_run_started(self):
        seen = []

        def quasar_run_started(resolved):
            seen.append(resolved)

        def without_argument():
            seen.append("told")

        without_argument.__name__ = "quasar_run_started"
        registry_of(plugin(quasar_run_started), plugin(without_argument)).run_started({"model": "tiny"})
        assert seen == ["told", {"model": "tiny"}]

    def test_hook_quasar_run_finished(self):
        seen = []

        def quasar_run_finished(results):
            seen.append(results)

        registry_of(plugin(quasar_run_finished)).run_finished({"arms": []})
        assert seen == [{"arms": []}]

    def test_hook_quasar_step_finished(self):
        seen = []

        def quasar_step_finished(arm, record):
            seen.append((arm, record))

        def only_the_arm(arm):
            seen.append(arm)

        only_the_arm.__name__ = "quasar_step_finished"
        tell = registry_of(plugin(quasar_step_finished), plugin(only_the_arm)).step_subscriber()
        tell("ngram", RECORD)
        assert seen == ["ngram", ("ngram", RECORD)]

    def test_nobody_who_listens_to_steps_means_no_subscriber(self):
        assert registry_of(plugin(drafters=[Good])).step_subscriber() is None

    def test_every_hook_has_a_test(self):
        assert {f"test_hook_{name}" for name in HOOKS} == {name for name in vars(TestHooks) if "test_hook_" in name}

    def test_every_hook_is_a_specification(self):
        functions = {name for name, each in vars(hookspecs).items() if isinstance(each, types.FunctionType)}
        assert functions == set(HOOKS)


class TestPluginsThatDoNotLoad:
    def test_an_import_error_names_entry_point_distribution_and_exception(self):
        error = broken(source(ImportError("no such thing"), "bad-dist", "0.3", "bad", "bad_pkg"))
        assert error == "entry point 'bad = bad_pkg' of bad-dist 0.3: ImportError: no such thing"

    @pytest.mark.parametrize("raised", [RuntimeError("first\n\n  second"), SystemExit(3), AttributeError("nowhere")])
    def test_nothing_that_an_import_raises_stops_the_others(self, raised):
        error = broken(source(raised))
        assert type(raised).__name__ in error
        assert error.endswith({"RuntimeError": "first; second"}.get(type(raised).__name__, str(raised)))

    def test_ctrl_c_is_not_an_error_of_the_plugin(self):
        with pytest.raises(KeyboardInterrupt):
            registry_of(source(KeyboardInterrupt()))

    def test_it_is_listed_as_a_plugin(self):
        (line,) = registry_of(source(ImportError("x"), "bad-dist", "0.3", "bad")).listing("plugin")
        assert (line.name, line.kind, line.distribution, line.version) == ("bad", "plugin", "bad-dist", "0.3")

    def test_a_misspelt_hook_is_answered_with_the_nearest_one(self):
        def quasar_drafter():
            return [Good]

        error = broken(plugin(quasar_drafter))
        assert "quasar_drafter is not a hook. Did you mean 'quasar_drafters'?" in error

    def test_a_misspelt_hook_without_the_prefix_is_found_by_its_mark(self):
        def quaser_drafters():
            return [Good]

        assert "quaser_drafters is not a hook. Did you mean 'quasar_drafters'?" in broken(plugin(quaser_drafters))

    def test_a_misspelt_hook_without_the_mark_is_found_by_its_prefix(self):
        module = plugin(drafters=[Good])
        module.quasar_verifers = lambda: [Fine]
        assert "quasar_verifers is not a hook. Did you mean 'quasar_verifiers'?" in broken(module)

    def test_a_hook_without_the_mark_is_not_silently_ignored(self):
        module = plugin(drafters=[Good])
        module.quasar_verifiers = lambda: [Fine]
        assert "quasar_verifiers is not a hook without the mark @quasar.hookimpl" in broken(module)

    def test_an_optional_hook_may_be_unknown(self):
        module = plugin(drafters=[Good])
        module.quasar_future = hookimpl(lambda: None, optionalhook=True)
        assert registry_of(module).find("drafter", "good") is Good

    def test_an_optional_hook_is_not_blamed_for_a_misspelt_one(self):
        module = plugin(drafter=[Good])
        module.quasar_an_optional_one = hookimpl(lambda: None, optionalhook=True)
        assert "quasar_drafter is not a hook" in broken(module)

    def test_a_hook_with_a_wrong_signature_is_shown(self):
        def quasar_drafters(config):
            return [Good]

        error = broken(plugin(quasar_drafters))
        assert "PluginValidationError" in error
        assert "quasar_drafters(config)" in error

    def test_a_plugin_without_hooks_is_told_which_there_are(self):
        error = broken(Good)  # the entry point names the class in place of the module
        assert "has no hooks; there are quasar_drafters, quasar_verifiers" in error
        assert "Good" in error

    def test_an_entry_point_that_leads_to_none(self):
        assert "None has no hooks" in broken(source(None))

    def test_a_wrapper_is_refused(self):
        def quasar_drafters():
            return (yield)

        module = types.ModuleType("plugin")
        module.quasar_drafters = hookimpl(quasar_drafters, wrapper=True)
        assert "hook wrappers are refused" in broken(module)

    def test_the_same_module_twice_is_loaded_once(self):
        module = plugin(drafters=[Good])
        error = broken(source(ImportError("x")).__class__("a", "one", "1", lambda: module), source(module, "two"))
        assert "of two 1.0: it is already loaded, as entry point 'a' of one 1" in error

    def test_the_same_entry_point_twice_keeps_the_first(self):
        first, second = plugin(drafters=[Good]), plugin(drafters=[named(Good, "other")])
        registry = registry_of(source(first), source(second))
        assert registry.find("drafter", "good") is Good
        assert "already loaded" in lines(registry, "plugin")["entry"].error

    @pytest.mark.parametrize("kind", ["drafters", "verifiers", "acceptors", "models"])
    def test_a_hook_that_raises_breaks_that_hook_only(self, kind):
        def hook():
            raise ValueError("boom")

        hook.__name__ = f"quasar_{kind}"
        others = {"drafters": [Good], "verifiers": [Fine], "acceptors": [Fair], "models": [Tiny()]}
        del others[kind]
        registry = registry_of(source(plugin(hook, **others), "half-dist", name="half"))
        found = {line.name: line.error for line in registry.listing()}
        expected = {each[0].name: None for each in others.values()}
        error = f"entry point 'half = pkg.module' of half-dist 1.0: quasar_{kind}: ValueError: boom"
        assert found == {**expected, "half": error}

    @pytest.mark.parametrize(("returned", "shown"), [(None, "None"), (Good, "Good"), (7, "7")])
    def test_a_hook_must_return_an_iterable(self, returned, shown):
        error = broken(plugin(drafters=returned))
        assert "quasar_drafters: it returned" in error
        assert shown in error
        assert error.endswith("not a list")

    def test_a_failed_command_hook_is_listed_and_stops_nothing(self):
        def quasar_commands(subparsers):
            raise KeyError("boom")

        def fine(subparsers):
            subparsers.add_parser("hello")

        fine.__name__ = "quasar_commands"
        parser = argparse.ArgumentParser()
        registry = registry_of(plugin(fine), plugin(quasar_commands), plugin(drafters=[Good]))
        registry.add_commands(parser.add_subparsers())
        parser.parse_args(["hello"])
        assert "quasar_commands: KeyError: 'boom'" in lines(registry, "plugin")["p1"].error

    @pytest.mark.parametrize("event", ["run_started", "run_finished"])
    def test_all_are_told_of_a_run_before_a_failure_is_raised(self, event):
        told = []
        argument = {"run_started": "resolved", "run_finished": "results"}[event]
        namespace = {"told": told}
        exec(f"def ok({argument}): told.append({argument})\ndef bad({argument}): 1 / 0", namespace)
        for function in (namespace["ok"], namespace["bad"]):
            function.__name__ = f"quasar_{event}"
        registry = registry_of(plugin(namespace["ok"]), source(plugin(namespace["bad"]), "bad-dist"))
        message = failure(getattr(registry, event), {})
        assert message == (
            f"entry point 'entry = pkg.module' of bad-dist 1.0: quasar_{event}: ZeroDivisionError: division by zero"
        )
        assert told == [{}]


class Lacking(Drafter):
    name = "lacking"
    drafts_by = "point_mass"


class TestNames:
    def test_two_distributions_of_one_name_are_both_refused_and_both_shown(self):
        one = source(plugin(drafters=[named(Good, "twin"), named(Good, "one")]), "dist-one", "1.1")
        two = source(plugin(drafters=[named(Good, "twin"), named(Good, "two")]), "dist-two", "2.2")
        registry = registry_of(one, two)
        twins = [line for line in registry.listing() if line.name == "twin"]
        assert [line.distribution for line in twins] == ["dist-one", "dist-two"]
        for text in (*(line.error for line in twins), failure(registry.find, "drafter", "twin")):
            assert "drafter 'twin' is provided by" in text
            assert "of dist-one 1.1" in text
            assert "of dist-two 2.2" in text
        assert registry.find("drafter", "one").name == "one"
        assert registry.find("drafter", "two").name == "two"

    def test_one_name_may_stand_for_two_kinds(self):
        registry = registry_of(plugin(drafters=[named(Good, "both")], verifiers=[named(Fine, "both")]))
        assert issubclass(registry.find("drafter", "both"), Drafter)
        assert issubclass(registry.find("verifier", "both"), Verifier)

    def test_a_plugin_may_not_repeat_itself(self):
        registry = registry_of(plugin(drafters=[named(Good, "twin"), named(Good, "twin")]))
        assert "is provided by" in failure(registry.find, "drafter", "twin")

    @pytest.mark.parametrize("built_in_first", [True, False])
    def test_a_built_in_keeps_its_name(self, built_in_first):
        built_in = source(plugin(drafters=[Good]), "Quasar_Spec", "9.9", "builtins")
        intruder = source(plugin(drafters=[named(Good, "good"), named(Good, "other")]), "evil-dist")
        registry = registry_of(*([built_in, intruder] if built_in_first else [intruder, built_in]))
        assert registry.find("drafter", "good") is Good
        assert registry.find("drafter", "other").name == "other"
        errors = {line.distribution: line.error for line in registry.listing() if line.name == "good"}
        assert errors["Quasar_Spec"] is None
        assert "of evil-dist 1.0: the name belongs to a built-in; give it another name" in errors["evil-dist"]

    def test_models_have_names_too(self):
        registry = registry_of(source(plugin(models=[Tiny()]), "one"), source(plugin(models=[Tiny()]), "two"))
        assert "model 'tiny' is provided by" in failure(registry.model, "tiny")

    def test_a_broken_class_does_not_take_the_name_from_a_sound_one(self):
        registry = registry_of(
            source(plugin(drafters=[named(Lacking, "good")]), "bad"), source(plugin(drafters=[Good]))
        )
        assert registry.find("drafter", "good") is Good

    def test_an_unknown_name_gets_the_nearest_and_all_that_work(self):
        registry = registry_of(plugin(drafters=[Good, named(Good, "ngram"), Lacking], verifiers=[Fine]))
        message = failure(registry.find, "drafter", "ngrm")
        assert message == "unknown drafter 'ngrm'. Did you mean 'ngram'? Available: good, ngram."

    def test_an_unknown_name_shows_the_plugins_that_did_not_load(self):
        registry = registry_of(
            source(ImportError("libcuda is missing"), "bad-dist", "0.3", "bad"),
            source(ValueError("odd"), "odd-dist", "0.4", "odd"),
            plugin(drafters=[Good]),
        )
        message = failure(registry.find, "drafter", "eagle")
        assert "Available: good." in message
        assert "entry point 'bad = pkg.module' of bad-dist 0.3: ImportError: libcuda is missing" in message
        assert "of odd-dist 0.4: ValueError: odd" in message

    def test_a_listing_is_ordered_and_can_be_narrowed(self):
        registry = registry_of(
            plugin(acceptors=[Fair], drafters=[named(Good, "z"), named(Good, "a")]),
            plugin(verifiers=[Fine]),
            source(ImportError("x"), name="bad"),
        )
        assert [line.name for line in registry.listing()] == ["a", "z", "fine", "fair", "bad"]
        assert {kind: [line.name for line in registry.listing(kind)] for kind in KINDS} == {
            "drafter": ["a", "z"],
            "verifier": ["fine"],
            "acceptor": ["fair"],
            "backend": [],
            "model": [],
            "plugin": ["bad"],
        }

    def test_the_kind_plugin_includes_hooks_that_fail_when_called(self):
        assert [line.name for line in registry_of(plugin(drafters=None)).listing("plugin")] == ["p0"]

    def test_an_unknown_kind_is_answered_with_the_nearest(self):
        assert "unknown kind 'draftr'. Did you mean 'drafter'?" in failure(registry_of().listing, "draftr")
