"""The instrument of the exactness ring: a chi-square of whole texts against the enumerated law.

Null hypothesis: the texts that a pipeline commits, EOS included as the end of a text, are independent draws from the
product of the target's next-token laws. Cells are whole texts; those that are expected fewer than ten times are pooled.
The test is Pearson's, one-sided, and a text of probability 0 refutes the hypothesis at once.

Family-wise bound: at most ``MOST_COMPOSITIONS`` compositions are tested, each at ``FAMILY_WISE / MOST_COMPOSITIONS``,
so a suite without faults fails with a probability of at most ``FAMILY_WISE`` over the choice of seeds (Bonferroni).
Seeds are fixed, so a run repeats itself. Negative controls must fall below the very same bound.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy.stats import chi2
from torch import Tensor
from toys import PROMPT, TableVerifier, Text, requests, same_everywhere, texts

from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.context import LogitsProcessor
from quasar.core.sampling import SamplingParams

FAMILY_WISE = 1e-4
MOST_COMPOSITIONS = 100
BOUND = FAMILY_WISE / MOST_COMPOSITIONS
SAMPLES = 20_000
FEWER = 8_000  # for faults that are seen from afar, and where another test looks closely as well
BATCH = 5000
SMALLEST_CELL = 10.0

FOUR_TOKENS = SamplingParams(temperature=1.0, max_new_tokens=4)

_tested: list[str] = []


def softmax_law(prefix: Sequence[int], logits: Tensor) -> Tensor:
    """The law of plain sampling at temperature 1, in float64."""
    return logits.double().softmax(dim=-1)


@dataclass(frozen=True)
class World:
    """A target model and how it is sampled.

    ``law`` is this ring's own reading of the sampling parameters; it shares no code with ``quasar``.
    """

    table: Tensor
    eos: int | None = None
    sampling: SamplingParams = FOUR_TOKENS
    processors: tuple[LogitsProcessor, ...] = ()
    law: Callable[[Sequence[int], Tensor], Tensor] = softmax_law
    acceptor: Acceptor = field(default_factory=Stochastic)

    @property
    def vocab(self) -> int:
        return self.table.shape[-1]

    def text_laws(self) -> dict[Text, float]:
        """The probability of every text that can be committed."""
        open_texts: dict[Text, float] = {(): 1.0}
        finished: dict[Text, float] = {}
        for _ in range(self.sampling.max_new_tokens):
            longer: dict[Text, float] = {}
            for text, probability in open_texts.items():
                prefix = (*PROMPT, *text)
                law = self.law(prefix, self.table[prefix[-2], prefix[-1]]).tolist()
                for token in range(self.vocab):
                    ended = finished if token == self.eos else longer
                    ended[(*text, token)] = probability * law[token]
            open_texts = longer
        return finished | open_texts

    def sample(self, drafter: Drafter, samples: int) -> list[Text]:
        """Texts of ``samples`` sample indices."""
        verifier, found = TableVerifier(self.table), []
        gc.disable()  # a batch is 100,000 small objects without a cycle: half of the time went into looking for one
        try:
            for start in range(0, samples, BATCH):
                batch = requests(range(start, min(start + BATCH, samples)), self.sampling, self.processors)
                found += texts(drafter, verifier, self.acceptor, batch, self.eos)
        finally:
            gc.enable()
        return found


def chi_square(observed: Sequence[Text], laws: Mapping[Text, float]) -> float:
    """p-value of the null hypothesis that ``observed`` are draws from ``laws``."""
    counts = Counter(observed)
    total = len(observed)
    if any(laws.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    cells: list[tuple[float, int]] = []
    expected, seen = 0.0, 0
    for text, probability in sorted(laws.items(), key=lambda item: item[1]):
        expected, seen = expected + total * probability, seen + counts[text]
        if expected >= SMALLEST_CELL:
            cells.append((expected, seen))
            expected, seen = 0.0, 0
    if expected:
        last = cells.pop()
        cells.append((last[0] + expected, last[1] + seen))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def p_value(drafter: Drafter, world: World, samples: int = SAMPLES) -> float:
    """p-value of "this pipeline's texts follow the target law"."""
    return chi_square(world.sample(drafter, samples), world.text_laws())


def follows_the_target(drafter: Drafter, world: World, samples: int = SAMPLES, seed: int = 0) -> Callable[[], None]:
    """A test that the pipeline's texts follow the target law; counted in the family."""
    world = replace(world, sampling=world.sampling.model_copy(update={"seed": seed}))
    _tested.append(drafter.name)
    assert len(_tested) <= MOST_COMPOSITIONS, "more compositions than the bound was made for: raise MOST_COMPOSITIONS"

    def test() -> None:
        p = p_value(drafter, world, samples)
        print(f"p = {p:.3g}")
        assert p >= BOUND, f"p = {p:.3g} is below {BOUND:.3g}: the texts do not follow the target law"

    return test


def refutes(p: float) -> bool:
    """Whether the ring would have failed: what a negative control must see."""
    print(f"p = {p:.3g}")
    return p < BOUND


def second_token(drafter: Drafter, law: Sequence[float]) -> tuple[float, list[float]]:
    """p-value and shares of the first drafted token, where the target gives one law everywhere."""
    world = World(same_everywhere(law), sampling=SamplingParams(temperature=1.0, max_new_tokens=3))
    found = world.sample(drafter, SAMPLES)
    counts = Counter(text[1] for text in found)
    return chi_square(found, world.text_laws()), [counts[token] / SAMPLES for token in range(world.vocab)]
