"""Every example of the documentation: Python is run, YAML is composed, TOML and command lines are parsed.

Examples name the real model; a tiny one stands in for it, so nothing is fetched and no text means anything.
"""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from quasar import cli
from quasar.compare.config import load_run
from quasar.hf import loading
from quasar.plugins.registry import load_registry
from tests.shared.tiny_folder import save_tiny_model

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^    (quasar .*)$|`(quasar [^`]*)`", re.MULTILINE)
_SYNOPSIS = re.compile(r"[|\[]")  # alternatives and options in brackets, not something to type


@dataclass(frozen=True)
class Example:
    """A piece of a page, and where it stands."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def _examples():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _FENCED.finditer(text):
            yield Example(page, text[: found.start()].count("\n") + 2, found[1], found[2])
        for found in _COMMAND.finditer(_FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)):
            command = found[1] or found[2]
            if not _SYNOPSIS.search(command):
                yield Example(page, text[: found.start()].count("\n") + 1, "command", command)


EXAMPLES = tuple(_examples())


def of(language):
    chosen = [example for example in EXAMPLES if example.language == language]
    return pytest.mark.parametrize("example", chosen, ids=str)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"), max_length=2048)


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_model):
    """Stand in an empty folder, with the tiny model behind the name of the built-in one."""
    find = loading.find_model

    def find_tiny(name, built_in=None, quiet=False):
        return find(str(tiny_model)) if name == "smollm2-135m" else find(name, built_in, quiet)

    monkeypatch.setattr(loading, "find_model", find_tiny)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(page, folder):
    """Write the examples of a page that begin with the name of a file."""
    for example in EXAMPLES:
        name = re.match(r"# ([\w.-]+\.(?:py|yaml))\n", example.text)
        if example.page == page and name:
            (folder / name[1]).write_text(example.text, encoding="utf-8")


@pytest.mark.parametrize(
    "page", dict.fromkeys(e.page for e in EXAMPLES if e.language == "python"), ids=lambda p: p.name
)
def test_python_runs(page, folder, capsys):
    """The examples of a page in their order and in one namespace, as a reader would type them; tests in them too."""
    write_files(page, folder)
    names = {"__name__": page.stem}
    for example in EXAMPLES:
        if example.page == page and example.language == "python":
            padding = "\n" * (example.line - 1)  # so that a traceback shows the line of the page
            exec(compile(padding + example.text, str(page), "exec"), names)
    for name, thing in list(names.items()):
        if name.startswith("test_"):
            thing()
    if "print(" in page.read_text(encoding="utf-8"):
        assert capsys.readouterr().out


@of("yaml")
def test_yaml_composes(example, folder):
    write_files(example.page, folder)
    data = yaml.safe_load(example.text)
    if "pipelines" not in data:  # the part of a file that a page is about
        data = {"model": "smollm2-135m", "pipelines": {"example": data}}
    (folder / "example.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    run = load_run(folder / "example.yaml")
    assert {arm.name for arm in run.arms} >= set(data["pipelines"])


@of("toml")
def test_toml_names_the_group_of_plugins(example):
    assert "quasar" in tomllib.loads(example.text)["project"]["entry-points"]


@of("mermaid")
def test_a_drawing_is_a_flowchart_of_arrows(example):
    first, *arrows = example.text.splitlines()
    node = r'\w+(?:\[".+?"\]|\(\[".+?"\]\))?'
    assert re.fullmatch(r"flowchart (?:LR|TD)", first)
    assert [line for line in arrows if not re.fullmatch(rf'    {node} (?:-- (?:\w+|".+?") )?--> {node}', line)] == []


@of("command")
def test_a_command_is_one(example):
    registry = load_registry()
    words = shlex.split(example.text, comments=True)[1:]
    if {"--help", "--version"} & set(words):
        with pytest.raises(SystemExit, match=r"^0$"):
            cli._parser(registry).parse_args(words)
    else:
        assert callable(cli._parser(registry).parse_args(words).run)


def test_every_example_is_tested():
    assert {example.language for example in EXAMPLES} == {"python", "yaml", "toml", "command", "mermaid"}
    for page in PAGES:
        fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
        blocks = [example for example in EXAMPLES if example.page == page and example.language != "command"]
        assert len(fences) == 2 * len(blocks), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
