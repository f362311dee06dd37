"""``quasar check --run`` finds an arm that is not what it claims, and says so in one line."""

import json

import pytest

from quasar.cli import main

HASTY = '''
"""Claims to be exact, and keeps the first draft token whatever the target says."""
from quasar import Acceptance, Acceptor, hookimpl
from quasar.acceptors.rules.exact import sample_and_compare


class Hasty(Acceptor):
    """Keeps too much."""

    name = "hasty"
    takes = frozenset({"none", "point_mass"})
    exact = True
    target_stream = True

    def accept(self, verification, context):
        honest, draft = sample_and_compare(verification, context), verification.draft
        if not draft.nodes:
            return honest
        first = (honest.num_accepted == 0) & (draft.num_nodes > 0)
        path = honest.path.clone()
        path[first, 0] = 1
        return Acceptance(path, honest.num_accepted + first, honest.next_token)


@hookimpl
def quasar_acceptors():
    return [Hasty]
'''

SHIFTED = '''
"""A verifier that gives the law of the slot before: it is always one token behind."""
from dataclasses import replace

from quasar import hookimpl
from quasar.verifiers.full import Full


class Shifted(Full):
    """Mixes its slots up."""

    name = "shifted"

    def verify(self, context, draft):
        honest = super().verify(context, draft)
        return replace(honest, distributions=honest.probs[:, [0, *range(draft.nodes)]])


@hookimpl
def quasar_verifiers():
    return [Shifted]
'''


@pytest.fixture
def check(tmp_path, tiny_model, capsys):
    """Run ``check`` on arms; return the exit code and the lines."""

    def run(arms: str, *words: str, sampling: str = "{max_new_tokens: 24}") -> tuple[int, list[str]]:
        (tmp_path / "hasty.py").write_text(HASTY, encoding="utf-8")
        (tmp_path / "shifted.py").write_text(SHIFTED, encoding="utf-8")
        line = json.dumps({"question_id": 7, "category": "chat", "turns": ["hello hello hello hello"]})
        (tmp_path / "q.jsonl").write_text(line + "\n", encoding="utf-8")
        (tmp_path / "run.yaml").write_text(
            f"model: {tiny_model}\nplugins: [hasty.py, shifted.py]\ndata: {{source: q.jsonl}}\n"
            f"sampling: {sampling}\npipelines:\n  vanilla: {{}}\n{arms}\n",
            encoding="utf-8",
        )
        code = main(["check", str(tmp_path / "run.yaml"), *words])
        printed = capsys.readouterr()
        assert printed.err == ""
        return code, printed.out.splitlines()

    return run


ways = pytest.mark.parametrize("words", [("--run",), ("--run", "--model")], ids=["tiny", "model"])
# Without it the greedy tiny model loops, and even a hasty acceptor is right.
samplings = pytest.mark.parametrize(
    "sampling", [f"{{max_new_tokens: 24, {more}}}" for more in ("no_repeat_ngram_size: 2", "temperature: 0.9")]
)


@ways
@samplings
def test_honest_arms_pass_one_line_each(check, words, sampling):
    code, lines = check("  ngram: {drafter: ngram, exact: true}", *words, sampling=sampling)
    assert code == 0
    assert [line.partition(":")[0] for line in lines] == ["vanilla", "ngram"]
    assert all(" 0 faults of " in line for line in lines)


@ways
@samplings
def test_an_acceptor_that_claims_too_much_is_a_fault_in_one_line(check, words, sampling):
    arms = "  ngram: {drafter: ngram}\n  hasty: {drafter: ngram, acceptor: hasty, exact: true}"
    code, lines = check(arms, *words, sampling=sampling)
    assert code == 1, lines
    [line] = [line for line in lines if " 0 faults " not in line]
    assert line.startswith("hasty: ")
    prompt = "7/0" if "--model" in words else "tiny "
    assert f"first at prompt {prompt}" in line
    assert "token " in line
    assert "gap " in line
    assert "(drift: own steps " in line


def test_without_run_the_claim_is_believed(check):
    # guards the test above: composing alone cannot see it
    code, lines = check("  hasty: {drafter: ngram, acceptor: hasty, exact: true}")
    assert code == 0
    assert any("exact with respect to the model in full precision" in line for line in lines)


def test_a_verifier_that_mixes_its_slots_up_is_a_fault(check):
    code, lines = check("  shifted: {drafter: ngram, verifier: shifted}", "--run")
    assert code == 1
    assert [line.partition(":")[0] for line in lines if " 0 faults " not in line] == ["shifted"]


def test_an_arm_of_another_text_is_not_judged(check):
    arms = "  bigram: {drafter: bigram}\n  typical: {drafter: ngram, acceptor: typical}"
    code, lines = check(arms, "--run", sampling="{temperature: 1.0}")
    assert code == 0
    assert lines[1:] == [
        f"{name}: not judged, its text is not plain decoding's by construction" for name in ("bigram", "typical")
    ]
