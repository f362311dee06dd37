"""The errors that a user can cause or mend, one tree.

    QuasarError
    ├── ConfigError             a file, key or value: says which, what is allowed, and the nearest spelling
    ├── PluginError             a plugin that does not load, a name that is taken, or one that nobody registered
    ├── CompositionError        two components whose traits clash
    ├── ContractError           a component returned something its contract forbids
    ├── CapacityError           a prompt or a cache longer than the model or the machine allows
    └── UnsupportedModelError   a model whose state cannot be rewound, or whose layers we cannot drive

The command line prints such an error as one line and exits with 2. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QuasarError(Exception):
    """Base of every error that says what the user can do about it, in one line."""


class ConfigError(QuasarError):
    """A configuration file, key or value is wrong."""


class PluginError(QuasarError):
    """A plugin does not load, collides with another, or is not there."""


class CompositionError(QuasarError):
    """The parts of a pipeline do not fit together."""


class ContractError(QuasarError):
    """A component broke its contract (shape, range or type of what it returned)."""


class CapacityError(QuasarError):
    """Something is longer than the model or the machine can hold."""


class UnsupportedModelError(QuasarError):
    """The model cannot be decoded speculatively, or we cannot drive it."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return a hint for a misspelt ``word``: the nearest option and all of them, ready to append to a message.

    Example:
        >>> did_you_mean("ngrm", ["none", "ngram"])
        " Did you mean 'ngram'? Available: ngram, none."
    """
    names = sorted(options)
    nearest = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    return f"{hint} Available: {', '.join(names) or 'nothing'}."
