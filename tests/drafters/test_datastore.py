"""Datastores: the suffix array against sorting, the search against looking everywhere, and files that are wrong."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar import load_pipeline
from quasar.cli import main
from quasar.commands.datastore_build import _pieces, read
from quasar.core.errors import ConfigError
from quasar.drafters.datastore.store import DEPTH, END, Datastore, fingerprint, write_datastore
from quasar.drafters.datastore.suffix_array import suffix_array
from quasar.testing import Letters
from tests.shared.tiny_folder import save_tiny_model

texts = st.lists(st.integers(0, 2), max_size=40)
LETTERS = Letters()


def write(folder, *documents, codec=LETTERS):
    write_datastore(
        folder, [torch.tensor(document, dtype=torch.int32) for document in documents], "letters", codec.tokens()
    )
    return Datastore(folder)


@given(text=texts, depth=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=200, deadline=None)
def test_suffixes_are_sorted_by_their_first_tokens(text, depth):
    found = suffix_array(torch.tensor(text, dtype=torch.int32), depth).tolist()
    assert found == sorted(range(len(text)), key=lambda start: (text[start : start + depth], start))


def test_a_depth_between_powers_of_two_is_reached():
    text = [1] * 5 + [0] + [1] * 7 + [2]
    found = suffix_array(torch.tensor(text), 6).tolist()
    assert [text[start : start + 6] for start in found] == sorted(text[start : start + 6] for start in range(len(text)))


@given(
    documents=st.lists(texts, min_size=1, max_size=3).filter(any), end=texts.filter(bool), shortest=st.integers(1, 3)
)
@settings(max_examples=200, deadline=None)
def test_the_longest_end_is_found_wherever_it_occurs(tmp_path_factory, documents, end, shortest):
    store = write(tmp_path_factory.mktemp("store"), *documents)
    length, found = store.find(end, shortest)
    wanted = {}  # by length of the end: what follows, at every place
    for document in documents:
        for size in range(shortest, min(len(end), DEPTH) + 1):
            starts = range(len(document) - size + 1)
            rest = [document[start + size :] for start in starts if document[start : start + size] == end[-size:]]
            wanted.setdefault(size, []).extend(rest)
    longest = max((size for size, rests in wanted.items() if rests), default=0)
    assert length == longest
    assert sorted(store.after(place, length, 100) for place in found) == sorted(wanted.get(longest, []))


def test_a_continuation_ends_with_its_document(tmp_path):
    store = write(tmp_path, [1, 2, 3], [1, 2])
    length, found = store.find([1, 2], 1)
    assert (length, [store.after(place, length, 5) for place in found]) == (2, [[], [3]])
    assert [store.after(place, 0, 2) for place in found] == [[1, 2], [1, 2]]


def test_the_description_counts_documents_and_tokens(tmp_path):
    about = write(tmp_path, [1, 2, 3], [], [4]).description
    assert (about.documents, about.tokens, about.model) == (2, 6, "letters")
    assert json.loads((tmp_path / "datastore.json").read_text())["fingerprint"] == fingerprint(LETTERS.tokens())
    assert END < 0


def test_a_fingerprint_tells_tokenizers_apart_and_does_not_depend_on_order():
    tokens = LETTERS.tokens()
    assert fingerprint(tokens) == fingerprint(dict(reversed(tokens.items())))
    assert fingerprint(tokens) != fingerprint(Letters("gfedcba").tokens())


# --- files that are wrong ---------------------------------------------------------------------------------------------


def test_nothing_to_write_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no tokens"):
        write(tmp_path, [], [])


def test_a_folder_without_a_datastore_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be opened.*quasar datastore build"):
        Datastore(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokens.i32", "suffixes.i32"])
def test_a_file_that_was_cut_off_is_refused(tmp_path, name):
    write(tmp_path, [1, 2, 3, 4])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-4])
    with pytest.raises(ConfigError, match="incomplete"):
        Datastore(tmp_path)


def test_another_version_is_refused(tmp_path):
    write(tmp_path, [1, 2])
    about = json.loads((tmp_path / "datastore.json").read_text())
    (tmp_path / "datastore.json").write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(ConfigError, match="another version"):
        Datastore(tmp_path)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_text_is_one_document_and_a_line_of_jsonl_is_one_each(tmp_path):
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("abca", encoding="utf-8")
    lines.write_text('"ab"\n\n[3, 4]\n{"text": "c", "more": 1}\n', encoding="utf-8")
    assert list(read(text, LETTERS, "text")) == [[0, 1, 2, 0]]
    assert list(read(lines, LETTERS, "text")) == [[0, 1], [3, 4], [2]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"body": "a"}', "no key 'text'"),
        ("[1, 99]", "below 7"),
        ("[true]", "below 7"),
        ("3", "should be a string"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    file = tmp_path / "a.jsonl"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        list(read(file, LETTERS, "text"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.txt cannot be read"):
        list(read(tmp_path / "nowhere.txt", LETTERS, "text"))


@given(st.text("ab\n", max_size=300))
def test_pieces_of_a_text_are_the_text(text):
    assert "".join(_pieces(text)) == text


# --- the command ------------------------------------------------------------------------------------------------------


def test_what_the_command_builds_is_drafted_from(tmp_path, capsys):
    model, lines, store = str(save_tiny_model(tmp_path / "model")), tmp_path / "a.jsonl", tmp_path / "store"
    plain = load_pipeline(model, drafter="none", quiet=True).generate("one two", max_new_tokens=12).generation
    lines.write_text(json.dumps(plain.token_ids) + '\n"and a text"\n', encoding="utf-8")
    assert main(["datastore", "build", str(store), str(lines), "--model", model]) == 0
    assert "tokens of 2 documents" in capsys.readouterr().out
    drafter = {"use": "retrieval", "datastore": str(store), "min_match": 1}
    done = load_pipeline(model, drafter=drafter, quiet=True).generate("one two", max_new_tokens=12).generation
    assert done.token_ids == plain.token_ids
    assert done.num_accepted > 0


def test_the_command_names_a_file_that_is_not_there(tmp_path, capsys):
    model = str(save_tiny_model(tmp_path / "model"))
    assert main(["datastore", "build", str(tmp_path / "store"), str(tmp_path / "b.txt"), "--model", model]) == 2
    assert "b.txt cannot be read" in capsys.readouterr().err
