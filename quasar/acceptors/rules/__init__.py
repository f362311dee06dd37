"""What acceptors share: the exact rules, and the longest path of accepted nodes."""

from quasar.acceptors.rules.exact import Rule, Walk, accept_exactly, drawn_from, ratio_test, sample_and_compare
from quasar.acceptors.rules.longest_path import longest_accepted

__all__ = [
    "Rule",
    "Walk",
    "accept_exactly",
    "drawn_from",
    "longest_accepted",
    "ratio_test",
    "sample_and_compare",
]
