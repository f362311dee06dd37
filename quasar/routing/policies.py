"""The policies that come with quasar: SpecQuant's rule, the length of the prompt, and a bandit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from quasar.core.description import ArmSpeed, Served, Speeds
from quasar.routing.router import Policy

GRADES = ("low", "mid", "high")
"""Names of the arms that the rules by complexity route to."""


def grade(value: int, low: int, mid: int) -> str:
    """Return ``low`` up to ``low``, ``mid`` up to ``mid``, else ``high``."""
    return GRADES[(value > low) + (value > mid)]


# --- by complexity ----------------------------------------------------------------------------------------------------

_COORDINATING = frozenset({"and", "but", "or", "nor", "yet", "plus", "&", "either", "neither"})
_SUBORDINATING = frozenset(
    re.findall(
        r"\w+",
        "about above across after against along although among around as at because before behind below beneath beside "
        "between beyond by despite down during except for from if in inside into like near of off on onto out outside "
        "over past per since than though through throughout to toward towards under unless until up upon via whereas "
        "whether while with within without",
    )
)
_VALUES = {"low": 0, "mid": 2, "high": 4}


def complexity(prompt: str) -> str:
    """Return ``low``, ``mid`` or ``high`` by SpecQuant's score of length, entities and syntax.

    Source: ``complexity.py`` of the SpecQuant repository. That counts entities and parts of speech with NLTK's taggers;
    here an entity is a run of capitalised words that does not begin a sentence, and conjunctions and prepositions are
    closed lists. The thresholds and weights are the published ones.
    """
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", prompt.strip()) if part]
    tokens = [re.findall(r"\w+(?:['’-]\w+)*|[^\w\s]", sentence) for sentence in sentences]
    words = [token.lower() for each in tokens for token in each]
    long = sum(map(len, tokens)) > 12 * len(sentences)
    joints = sum(word in _COORDINATING for word in words) + sum(word in _SUBORDINATING for word in words) + long
    grades = (
        grade(len(prompt.split()), 7, 15),
        grade(sum(_entities(each) for each in tokens), 1, 2),
        grade(joints, 1, 2),
    )
    score = sum(weight * _VALUES[each] for weight, each in zip((1, 2, 3), grades, strict=True))
    return grade(score, 3, 8)


def _entities(tokens: Sequence[str]) -> int:
    """Count runs of capitalised words behind the sentence's first word."""
    capitals = [False, *(token[:1].isupper() and token != "I" for token in tokens[1:])]
    return sum(now and not before for before, now in pairwise(capitals))


class ByGrade(Policy):
    """Route by a function of the prompt that returns ``low``, ``mid`` or ``high``."""

    needs = GRADES

    def __init__(self, of: Callable[[str], str]) -> None:
        self._of = of
        self._served = dict.fromkeys(GRADES, 0)

    def choose(self, prompts: Sequence[str], arms: Sequence[str]) -> list[str]:
        """Return the grades."""
        chosen = [self._of(prompt) for prompt in prompts]
        for each in chosen:
            self._served[each] += 1
        return chosen

    def describe(self) -> Served:
        """Requests by grade."""
        return Served(dict(self._served))


# --- by what was fast -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Record:
    """What is known of an arm: requests served, tokens, and the seconds that these took."""

    served: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Bandit(Policy):
    """Try every arm once, then take the one whose speed has the highest upper confidence bound.

    All requests of a batch get one arm, because their steps take their time together. What it learns outlives the
    requests, so which arm serves a prompt depends on the prompts before it and on the clock; under exact arms the text
    does not, in distribution, and with point-mass drafts not at all.

    Source: UCB1 (Auer, Cesa-Bianchi and Fischer, 2002), its bound scaled by the arm's own mean.
    """

    def __init__(self, exploration: float, class_of: Callable[[str], str]) -> None:
        self._exploration, self._class_of = exploration, class_of
        self._records: dict[str, dict[str, _Record]] = {}

    def choose(self, prompts: Sequence[str], arms: Sequence[str]) -> list[str]:
        """Return one arm for all."""
        records = self._records.setdefault(self._class_of(prompts[0]), {arm: _Record() for arm in arms})
        new = [arm for arm in arms if not records[arm].served]
        total = sum(record.served for record in records.values())

        def bound(arm: str) -> float:
            record = records[arm]
            return record.speed * (1 + self._exploration * sqrt(2 * log(total) / record.served))

        best = new[0] if new else max(arms, key=bound)
        records[best].served += len(prompts)
        return [best] * len(prompts)

    def learn(self, prompts: Sequence[str], chosen: Sequence[str], tokens: int, seconds: float) -> None:
        """Add to the arm's record."""
        record = self._records[self._class_of(prompts[0])][chosen[0]]
        record.tokens += tokens
        record.seconds += seconds

    def describe(self) -> Speeds:
        """Speeds, and the regret: seconds beyond those that the fastest arm of each class would have taken, by them."""
        regret, spent, shown = 0.0, 0.0, {}
        for name, records in self._records.items():
            shown[name] = {arm: ArmSpeed(each.served, round(each.speed, 2)) for arm, each in records.items()}
            best = max(record.speed for record in records.values())
            seconds, tokens = (sum(getattr(each, part) for each in records.values()) for part in ("seconds", "tokens"))
            spent += seconds
            regret += seconds - tokens / best if best else 0.0
        share = regret / spent if spent else 0.0
        return Speeds(shown, round(regret, 3), round(share, 4))


# --- options ----------------------------------------------------------------------------------------------------------


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpecQuantOptions(_Options):
    """SpecQuant's published rule."""

    use: Literal["specquant"] = "specquant"

    def make(self) -> Policy:
        """Return the policy."""
        return ByGrade(complexity)


class LengthOptions(_Options):
    """Length alone."""

    use: Literal["length"] = "length"
    low: int = Field(7, ge=0, description="Most words of a simple prompt.")
    mid: int = Field(15, ge=0, description="Most words of a middling prompt.")

    def make(self) -> Policy:
        """Return the policy."""
        return ByGrade(lambda prompt: grade(len(prompt.split()), self.low, self.mid))


class BanditOptions(_Options):
    """Upper confidence bounds on tokens per second."""

    use: Literal["bandit"] = "bandit"
    exploration: float = Field(0.15, ge=0, description="Weight of the bound, as a share of an arm's speed.")
    classes: Literal["one", "complexity"] = Field(
        "one", description="What is learnt apart: nothing, or the three grades of SpecQuant's rule."
    )

    def make(self) -> Policy:
        """Return the policy."""
        return Bandit(self.exploration, complexity if self.classes == "complexity" else lambda prompt: "all")


def _by_name(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


PolicyOptions = Annotated[
    SpecQuantOptions | LengthOptions | BanditOptions, Field(discriminator="use"), BeforeValidator(_by_name)
]
"""A policy as written in YAML: a name, or a mapping with ``use``."""
