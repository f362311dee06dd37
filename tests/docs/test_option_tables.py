"""The option tables of the documentation are those of the code, and every component has one."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def _make_tables():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tables = _make_tables()
REGISTRY = make_tables.builtins()
COMPONENTS = [(entry.kind, entry.name) for kind in make_tables.KINDS for entry in REGISTRY.entries(kind)]


def page(folder, mark, between=""):
    file = folder / "page.md"
    file.write_text(
        f"# A page\n\n<!-- options: {mark} -->\n{between}<!-- /options -->\n\nThe rest.\n", encoding="utf-8"
    )
    return file


def test_no_page_is_stale(capsys):
    assert make_tables.main(["--check"]) == 0, capsys.readouterr()


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_every_component_has_a_table_in_a_page(kind, name):
    marked = set().union(*(make_tables.marked(each.read_text(encoding="utf-8")) for each in PAGES))
    assert (kind, name) in marked, f"no page of docs/ has '<!-- options: {kind} {name} -->'"


def test_a_mark_is_filled_once_and_for_all(tmp_path, capsys):
    file = page(tmp_path, "drafter union")
    assert make_tables.main(["--check"], [file]) == 1
    assert capsys.readouterr().out == "page.md: stale; run docs/make_tables.py\n"
    assert "|" not in file.read_text(encoding="utf-8")
    assert make_tables.main([], [file]) == 0
    filled = file.read_text(encoding="utf-8")
    assert "| `drafters` | list of drafters (1 or more) | required | Who proposes, the most trusted first. |" in filled
    assert "| `max_nodes` | integer 1..1024 | `16` | Nodes of the tree; trials, if a drafter samples. |" in filled
    assert filled.endswith("\n\n<!-- /options -->\n\nThe rest.\n")
    assert make_tables.main([], [file]) == 0
    assert file.read_text(encoding="utf-8") == filled
    assert make_tables.main(["--check"], [file]) == 0


def test_a_component_without_options_gets_a_sentence(tmp_path):
    file = page(tmp_path, "drafter none", "something old\n")
    assert make_tables.main([], [file]) == 0
    assert "-->\n\nIt has no options.\n\n<!--" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("drafter ngrm", "page.md: '<!-- options: drafter ngrm -->': unknown drafter 'ngrm'. Did you mean 'ngram'?"),
        (
            "ngram",
            "page.md: '<!-- options: ngram -->' should say KIND NAME, the kind one of drafter, verifier, acceptor.",
        ),
    ],
)
def test_a_mark_that_names_nothing_is_an_error(mark, said, tmp_path, capsys):
    assert make_tables.main([], [page(tmp_path, mark)]) == 2
    assert capsys.readouterr().err.startswith(f"make_tables: error: {said}")


def test_a_mark_without_an_end_is_an_error(tmp_path, capsys):
    file = tmp_path / "page.md"
    file.write_text("<!-- options: drafter none -->\n", encoding="utf-8")
    assert make_tables.main([], [file]) == 2
    assert "needs a '<!-- /options -->'" in capsys.readouterr().err
