"""What components say of themselves: one type, one flat layout, and plugins that still return a dict."""

from __future__ import annotations

import pytest

from quasar.core.components import Drafter
from quasar.core.description import ArmSpeed, Description, Served, Speeds, describe_part, description_of
from quasar.core.errors import ContractError
from quasar.core.types import Draft


class Stranger(Drafter):
    """Says what it is told to say."""

    name = "stranger"
    drafts_by = "none"

    def __init__(self, said):
        super().__init__()
        self.said = said

    def describe(self):
        return self.said

    def propose(self, context, budget):
        return Draft.empty(context.batch)


FULL = Description("torch", "float32", "cpu", 12, Served({"a": 1}), {"mode": "x", "skipped": []})
FLAT = {
    "policy": {"served": {"a": 1}}, "backend": "torch", "mode": "x", "skipped": [], "dtype": "float32", "device": "cpu",
    "weight_bytes": 12,
}  # fmt: skip


def test_the_flat_layout_has_what_there_is_in_one_order():
    assert list(FULL.flat().items()) == list(FLAT.items())
    assert Description(weight_bytes=0).flat() == {"weight_bytes": 0}
    assert Description().flat() == {}


def test_a_description_is_what_its_flat_layout_says():
    assert Description.of(FLAT) == FULL
    speeds = Speeds({"all": {"fast": ArmSpeed(3, 2.5)}}, 0.5, 0.1)
    assert Description.of(Description(policy=speeds).flat()).policy == speeds
    another = {"policy": {"served": {"a": 1}, "because": "of the moon"}}  # not one of ours: nothing of it may be lost
    assert Description.of(another).flat() == another


def test_a_plugin_may_return_a_mapping_or_add_to_what_its_base_says():
    assert description_of(Stranger({"backend": "own", "speed": 3})) == Description("own", details={"speed": 3})
    assert description_of(Stranger({**FULL, "more": 1})).flat() == {**FLAT, "more": 1}
    assert (FULL["backend"], FULL.get("none"), "mode" in FULL, dict(FULL)) == ("torch", None, True, FLAT)
    assert describe_part(Stranger(FULL)) == {"use": "stranger", **FLAT}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "it is of type NoneType"),
        (["torch"], "it is of type list"),
        ({"weight_bytes": "12 MB"}, "'weight_bytes' is '12 MB', not a whole number"),
        ({"backend": 3}, "'backend' is 3, not a text"),
        ({"policy": "moon"}, "'policy' is 'moon', not a mapping"),
    ],
)
def test_anything_else_is_one_line_that_names_the_component(said, why):
    with pytest.raises(ContractError) as error:
        description_of(Stranger(said))
    assert str(error.value) == (
        f"drafter 'stranger': describe() should return a Description or a mapping of its attributes: {why}."
    )
