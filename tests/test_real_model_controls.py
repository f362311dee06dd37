"""Every control that transformers has too, against its own ``generate``: the command of the benchmark on two prompts."""

import pytest

from benchmarks.transformers_controls import DRAFTERS, Sides

pytestmark = pytest.mark.model

PROMPTS = ("Count: one, two, one, two, one,", "Say hello.")


@pytest.fixture(scope="module")
def compared(smollm2):
    """Return {(control, arm): [(their ids, our ids) for each prompt]}."""
    sides, found = Sides(str(smollm2)), {}
    for prompt in PROMPTS:
        for name, arm, theirs, ours in sides.compare(prompt, tokens=8):
            found.setdefault((name, arm), []).append((theirs, ours))
    return found


@pytest.mark.parametrize("arm", DRAFTERS)
def test_ids_are_those_of_transformers_generate_under_every_control(compared, arm):
    different = {name: pairs for (name, of), pairs in compared.items() if of == arm and any(a != b for a, b in pairs)}
    assert len(compared) == 13 * len(DRAFTERS)
    assert not different


def test_nearly_every_control_changes_the_text(compared):
    # guards the test above; no text ends with EOS within so few tokens
    nothing = [theirs for theirs, _ in compared["nothing", "plain"]]
    idle = {name for (name, _), pairs in compared.items() if [theirs for theirs, _ in pairs] == nothing}
    assert idle <= {"nothing", "ignore_eos", "no_repeat_ngram_size"}
