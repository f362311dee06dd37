"""A verifier for each kind of request."""

from __future__ import annotations

import torch
from pydantic import Field

from quasar.core.components import Verifier
from quasar.core.context import Context
from quasar.core.description import Description, description_of
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft, Verification
from quasar.models.verifier import ModelVerifier
from quasar.routing.policies import PolicyOptions
from quasar.routing.router import Policy, Router


class Routed(Verifier):
    """Choose the model that serves a request by a policy: lighter variants for what looks simple.

    Which distribution a text follows depends on its prompt, so unless all arms follow one distribution the output is
    exact with respect to nothing. The variants share what tensors they can. A batch with several arms is forwarded by
    each of them.

    Source: SpecQuant's abstract, which serves simple queries from quantised variants.

    Args:
        config: options.
        policy: instead of the one that the options name.
    """

    name = "routed"
    precision = "routed"

    class Config(Verifier.Config):
        """Options."""

        arms: dict[str, ModelVerifier] = Field(
            min_length=1,
            examples=[{"low": "pruned", "mid": "int8", "high": "full"}],
            description="The verifiers, by name; the rules want low, mid, high.",
        )
        policy: PolicyOptions = Field(examples=["specquant"], description="Who is asked: specquant, length or bandit.")

    config: Config

    def __init__(self, config: Config | None = None, policy: Policy | None = None) -> None:
        super().__init__(config)
        self._router = Router(policy or self.config.policy.make(), list(self.config.arms))

    def load(self, models: ModelProvider) -> None:
        """Load the arms."""
        super().load(models)
        self._router.load(models)

    def reference(self) -> str | None:
        """The arms' one distribution, or nothing."""
        distributions = {arm.reference() for arm in self.config.arms.values()}
        return distributions.pop() if len(distributions) == 1 else None

    def max_length(self) -> int | None:
        """The shortest of the arms'."""
        known = [arm.max_length() for arm in self.config.arms.values()]
        return min((longest for longest in known if longest is not None), default=None)

    def vocab_size(self) -> int | None:
        """That of the arms."""
        return next(iter(self.config.arms.values())).vocab_size()

    def describe(self) -> Description:
        """What the policy and the arms say; weights are counted once."""
        said = {name: description_of(arm) for name, arm in self.config.arms.items()}
        return Description(
            backend=", ".join(dict.fromkeys(each.backend for each in said.values() if each.backend is not None)),
            dtype=", ".join(dict.fromkeys(each.dtype for each in said.values() if each.dtype is not None)),
            weight_bytes=sum(self.storages().values()),
            policy=self._router.policy.describe(),
            details={"arms": {name: each.flat() for name, each in said.items()}},
        )

    def positions_forwarded(self, context: Context) -> int:
        """Columns computed so far for these requests, by all arms that served them."""
        return sum(arm.positions_forwarded(context) for arm in self._serving(context))

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the key-value caches."""
        return sum(arm.peak_bytes(context) for arm in self._serving(context))

    def verify(self, context: Context, draft: Draft) -> Verification:
        """Return the distributions of every row's own arm."""
        chosen = context.scratch(self, list[str])
        chosen[:] = self._router.route(context)
        found = {name: self.config.arms[name].verify(context, draft) for name in dict.fromkeys(chosen)}
        first = next(iter(found.values()))
        if len(found) == 1:
            return first
        own = [(found[name], row) for row, name in enumerate(chosen)]
        logits = torch.stack([each.logits[row] for each, row in own if each.logits is not None])
        return Verification(draft, torch.stack([each.probs[row] for each, row in own]), logits)

    def _serving(self, context: Context) -> list[ModelVerifier]:
        return [self.config.arms[name] for name in dict.fromkeys(context.scratch(self, list[str]))]
