import os
import subprocess
import sys
import textwrap

import pytest

from quasar.core.errors import PluginError
from quasar.plugins.registry import load_registry
from tests.shared.plugin_fakes import Fine, Good, failure, named, plugin, registry_of, source


@pytest.fixture(autouse=True)
def _no_allow_list(monkeypatch):
    monkeypatch.delenv("QUASAR_PLUGINS", raising=False)


class TestAllowList:
    def names(self, monkeypatch, value):
        monkeypatch.setenv("QUASAR_PLUGINS", value)
        sources = [
            source(plugin(drafters=[named(Good, "built-in")]), "quasar-spec"),
            source(plugin(drafters=[named(Good, "one")]), "Dist.One"),
            source(plugin(drafters=[named(Good, "two")]), "dist-two"),
        ]
        self.registry = load_registry(sources=sources)
        return [line.name for line in self.registry.listing("drafter")]

    def test_without_it_everything_loads(self):
        assert len(registry_of(plugin(drafters=[Good]), plugin(verifiers=[Fine])).listing()) == 2

    def test_the_empty_list_leaves_the_built_ins(self, monkeypatch):
        assert self.names(monkeypatch, "") == ["built-in"]

    @pytest.mark.parametrize("value", ["dist-one", "dist_one", "Dist.One", " dist-one ,"])
    def test_names_are_compared_as_pip_compares_them(self, monkeypatch, value):
        assert self.names(monkeypatch, value) == ["built-in", "one"]

    def test_several(self, monkeypatch):
        assert self.names(monkeypatch, "dist-one,dist-two") == ["built-in", "one", "two"]

    def test_what_is_left_out_is_not_even_imported(self, monkeypatch):
        monkeypatch.setenv("QUASAR_PLUGINS", "")
        registry = registry_of(source(ImportError("boom")))
        assert registry.listing() == []

    def test_what_is_left_out_is_told_to_who_asks_for_it(self, monkeypatch):
        self.names(monkeypatch, "dist-two")
        assert failure(self.registry.find, "drafter", "one").endswith("QUASAR_PLUGINS leaves out: Dist.One.")

    def test_a_name_that_is_not_installed_is_listed(self, monkeypatch):
        self.names(monkeypatch, "dist-too")
        (line,) = self.registry.listing("plugin")
        assert line.name == "dist-too"
        assert "no installed distribution of that name has plugins. Did you mean 'dist-two'?" in line.error

    def test_files_are_not_subject_to_it(self, monkeypatch, tmp_path):
        monkeypatch.setenv("QUASAR_PLUGINS", "")
        registry = load_registry([write(tmp_path, LOCAL)], sources=[])
        assert registry.find("drafter", "local").name == "local"


LOCAL = """
from dataclasses import dataclass

from quasar import Drafter, hookimpl


@dataclass
class State:
    count: "int" = 0


class Local(Drafter):
    '''Comes from a file.'''

    name = "local"
    drafts_by = "point_mass"

    def propose(self, context, budget):
        raise NotImplementedError


@hookimpl
def quasar_drafters():
    return [Local]
"""


def write(folder, text, name="local.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


class TestFiles:
    def test_a_file_is_a_plugin(self, tmp_path):
        path = write(tmp_path, LOCAL)
        registry = load_registry([path], sources=[])
        assert registry.find("drafter", "local").__module__.startswith("_quasar_file_")
        (line,) = registry.listing()
        assert (line.summary, line.distribution, line.version) == ("Comes from a file.", str(path), "")

    def test_files_of_one_name_do_not_meet(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        first = write(tmp_path / "a", LOCAL)
        second = write(tmp_path / "b", LOCAL.replace('"local"', '"second"'))
        registry = load_registry([first, second], sources=[])
        assert [line.name for line in registry.listing()] == ["local", "second"]
        modules = {registry.find("drafter", name).__module__ for name in ("local", "second")}
        assert len(modules) == 2

    def test_a_file_named_twice_is_loaded_once(self, tmp_path, monkeypatch):
        path = write(tmp_path, LOCAL)
        monkeypatch.chdir(tmp_path)
        assert len(load_registry([path, path.relative_to(tmp_path)], sources=[]).listing()) == 1

    def test_an_edit_takes_effect_at_once_and_leaves_no_bytecode(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        load_registry([write(tmp_path, LOCAL)], sources=[])
        registry = load_registry([write(tmp_path, LOCAL.replace('"local"', '"loc4l"'))], sources=[])
        assert registry.find("drafter", "loc4l").name == "loc4l"
        assert [path.name for path in tmp_path.iterdir()] == ["local.py"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("x = 1\ny = (\n", "SyntaxError: '(' was never closed (local.py, line 2)"),
            ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
            ("raise SystemExit(3)", "SystemExit: 3"),
            (LOCAL.replace("quasar_drafters", "quasar_drafter"), "Did you mean 'quasar_drafters'?"),
            (LOCAL.replace("return [Local]", "return Local"), "it returned <class"),
            (LOCAL.replace("return [Local]", "return 1 / 0"), "quasar_drafters: ZeroDivisionError: division by zero"),
            (LOCAL.replace("def propose", "def suggest"), "class Local lacks propose(self, context, budget)"),
            (LOCAL.replace('"local"', '"good"'), "drafter 'good' is provided by"),
            ("x = 1", "has no hooks"),
        ],
    )
    def test_an_error_in_a_file_is_raised_at_once(self, tmp_path, text, expected):
        path = write(tmp_path, text)
        before = set(sys.modules)
        with pytest.raises(PluginError) as caught:
            load_registry([path], sources=[source(plugin(drafters=[Good]))])
        message = str(caught.value)
        assert f"file {path}" in message
        assert expected in message
        assert "\n" not in message
        if "Error: " in expected and "ZeroDivision" not in expected:
            assert set(sys.modules) == before

    def test_a_failed_command_hook_of_a_file_is_raised(self, tmp_path):
        text = "from quasar import hookimpl\n@hookimpl\ndef quasar_commands(subparsers):\n    1 / 0\n"
        registry = load_registry([write(tmp_path, text)], sources=[])
        assert "quasar_commands: ZeroDivisionError" in failure(registry.add_commands, None)

    def test_a_missing_file(self, tmp_path):
        message = failure(lambda: load_registry([tmp_path / "gone.py"], sources=[]))
        assert f"file {tmp_path / 'gone.py'}: FileNotFoundError" in message

    def test_a_broken_plugin_beside_a_file_stays_a_listed_error(self, tmp_path):
        registry = load_registry([write(tmp_path, LOCAL)], sources=[source(ImportError("x"), name="bad")])
        assert [line.name for line in registry.listing()] == ["local", "bad"]


def run_python(code, **environment):
    """Run ``code`` in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


class TestInstalled:
    def test_loading_imports_no_torch(self):
        code = """
            import argparse, sys
            from quasar.plugins.registry import load_registry
            registry = load_registry()
            registry.add_commands(argparse.ArgumentParser().add_subparsers())
            registry.step_subscriber()
            print("torch" in sys.modules)
        """
        assert run_python(code, QUASAR_PLUGINS="") == ["False"]

    def test_the_built_ins_are_there(self):
        registry = load_registry()
        found = {line.kind: set() for line in registry.listing()}
        for line in registry.listing():
            if line.distribution == "quasar-spec":
                assert line.error is None
                found[line.kind].add(line.name)
        assert found["drafter"] >= {"none", "ngram"}
        assert found["verifier"] >= {"full", "int8"}
        assert found["acceptor"] >= {"stochastic", "greedy"}
        assert registry.model("smollm2-135m").name == "smollm2-135m"

    def test_a_checkout_that_is_not_installed_has_its_built_ins(self, monkeypatch):
        monkeypatch.setattr("importlib.metadata.distributions", list)
        (line, *_) = load_registry().listing("acceptor")
        assert (line.distribution, line.error) == ("quasar-spec", None)

    def fake(self, folder, entry_points, name="fake_dist", version="1.0"):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")

    def test_a_distribution_that_is_found_twice_counts_once(self, tmp_path, monkeypatch):
        for folder, version in (("a", "2.0"), ("b", "1.0")):
            self.fake(tmp_path / folder, "[quasar]\nentry = not_there\n", version=version)
            monkeypatch.syspath_prepend(str(tmp_path / folder))
        found = [line for line in load_registry().listing("plugin") if line.distribution == "fake_dist"]
        assert [line.version for line in found] == ["1.0"]  # the folder that comes first on the path

    def test_a_damaged_entry_points_file_is_listed_if_it_is_for_us(self, tmp_path, monkeypatch):
        self.fake(tmp_path, "[quasar]\nno equals sign\n", name="damaged")
        self.fake(tmp_path, "[console_scripts]\nno equals sign\n", name="foreign")
        monkeypatch.syspath_prepend(str(tmp_path))
        found = {line.distribution: line.error for line in load_registry().listing("plugin")}
        assert "entry point 'entry_points.txt' of damaged 1.0: " in found["damaged"]
        assert "foreign" not in found
