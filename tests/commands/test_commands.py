"""Commands come through one hook, ours first, and cost nothing before they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quasar import cli, hookimpl
from quasar.core.errors import PluginError
from quasar.plugins.registry import Source, load_registry
from quasar.plugins.sources import installed_sources

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "torchao", "pydantic")


def imported(*words):
    """Return which of the heavy packages a command of a fresh interpreter imported, and its exit status."""
    code = (
        "import sys\n"
        "from quasar.cli import main\n"
        "try:\n    status = main(sys.argv[1:])\n"
        "except SystemExit as left:\n    status = left.code or 0\n"
        f"print('STATUS', status, *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    paths = [str(ROOT), str(ROOT / "plugins" / "quasar-cpu"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "QUASAR_PLUGINS": "quasar-cpu"},
    )  # fmt: skip
    *printed, last = done.stdout.splitlines()
    _, status, *names = last.split()
    return int(status), set(names), "\n".join(printed)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--help"], 0, "COMMAND"),
        (["compare", "--help"], 0, "the first N prompts of each task"),
        (["--version"], 0, "quasar "),
        (["ls", "nonsense"], 2, ""),
        ([], 2, ""),
        (["ls", "models"], 0, "smollm2-135m"),
        (["show"], 2, ""),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_torch_is_not_imported_where_it_is_not_needed(words, status, said):
    found, names, printed = imported(*words)
    assert (found, names) == (status, set())
    assert said in printed


@pytest.mark.parametrize("words", [["ls"], ["check", "--preset", "quickstart"], ["show", "ngram"]], ids=" ".join)
def test_transformers_is_not_imported_before_a_model_is_wanted(words):
    status, names, printed = imported(*words)
    assert status == 0
    assert "ngram" in printed
    assert "torch" in names  # so that this test would see what it looks for
    assert "transformers" not in names


# --- through the hook -------------------------------------------------------------------------------------------------


class Commands:
    """A plugin that adds a command."""

    def __init__(self, *names):
        self._names = names

    @hookimpl
    def quasar_commands(self, subparsers):
        """Add commands."""
        for name in self._names:
            subparsers.add_parser(name).set_defaults(run=lambda arguments, name=name: f"a plugin's {name}")


def registry(*plugins):
    """Return the built-ins, behind plugins that came first."""
    builtins = [source for source in installed_sources() if source.is_builtin]
    others = [Source(f"p{number}", "dist", "1.0", lambda each=each: each) for number, each in enumerate(plugins)]
    return load_registry(sources=[*others, *builtins])


def parsed(registry, *words):
    return cli._parser(registry).parse_args(words).run


def test_every_built_in_command_comes_through_the_hook():
    help_text = cli._parser(registry()).format_help()
    files = {path.stem for path in (ROOT / "quasar" / "commands").glob("*.py")} - {"__init__", "datastore_build"}
    assert all(f"\n    {name}" in help_text for name in files)
    bare = load_registry(sources=[Source("p", "dist", "1.0", lambda: Commands("hello"))])
    assert "compare" not in cli._parser(bare).format_usage() + str(
        cli._parser(bare)._subparsers._group_actions[0].choices
    )


def test_a_plugin_adds_a_command():
    assert parsed(registry(Commands("hello")), "hello")(None) == "a plugin's hello"


def test_a_built_in_command_keeps_its_name_and_the_plugin_is_listed_with_the_reason():
    found = registry(Commands("hello", "ls"))
    assert parsed(found, "ls").__module__ == "quasar.commands.ls"
    [line] = found.listing("plugin")
    assert "p0 of dist 1.0" in line.error.replace("'", "")
    assert "quasar_commands: a command of that name is there already (conflicting subparser: ls)" in line.error


def test_of_two_plugins_with_one_command_the_second_is_listed():
    found = registry(Commands("hello"), Commands("hello"))
    assert parsed(found, "hello")
    assert len(found.listing("plugin")) == 1


# --- one registry a command -------------------------------------------------------------------------------------------


def test_a_registry_with_files_has_what_the_other_has_and_leaves_it_alone(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from quasar import hookimpl\n\n@hookimpl\ndef quasar_models():\n    return []\n", encoding="utf-8")
    first = registry()
    assert first.with_files([]) is first
    second = first.with_files([file])
    assert second.find("drafter", "ngram") is first.find("drafter", "ngram")
    file.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"mine\.py: ZeroDivisionError: division by zero$"):
        first.with_files([file])


def test_plugins_are_looked_up_once_a_command(monkeypatch, capsys, tmp_path):
    looked = []

    def counted():
        looked.append(1)
        return installed_sources()

    monkeypatch.setattr("quasar.plugins.registry.installed_sources", counted)
    assert cli.main(["check", "--preset", "quickstart"]) == 0
    file = tmp_path / "mine.py"
    file.write_text("from quasar import hookimpl\n\n@hookimpl\ndef quasar_models():\n    return []\n", encoding="utf-8")
    assert cli.main(["check", "--preset", "quickstart", "--set", f"plugins=[{file}]"]) == 0
    assert len(looked) == 2
    assert capsys.readouterr().out.count("Nothing was loaded.") == 2
