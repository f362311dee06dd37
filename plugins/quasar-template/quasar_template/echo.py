"""A drafter: the text repeats itself, so propose what followed the last token when it was last seen."""

from collections.abc import Sequence

from pydantic import Field

from quasar import Context, Draft, Drafter


class Echo(Drafter):
    """Proposes the tokens that followed the previous occurrence of the last token."""

    # What YAML files call it: `drafter: echo`.
    name = "echo"

    # How tokens are chosen. "point_mass": without sampling, so the verifier's distribution alone decides what is
    # accepted. A drafter that samples says "sampled", and returns the distributions that it sampled from.
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """The options, read from YAML; a misspelt one is refused."""

        num_speculative_tokens: int = Field(4, ge=1, le=64, description="Draft tokens a step.")
        window: int = Field(512, ge=2, description="How many of the last tokens are searched.")

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain of draft tokens per row.

        Args:
            context: the requests; ``row.token_ids`` is prompt and output so far, the last token included.
            budget: how many draft tokens each row can still use; 0 for a row that has finished.
        """
        drafts = []
        for row, limit in zip(context.rows, budget, strict=True):
            size = min(self.config.num_speculative_tokens, limit)
            drafts.append(continuation(row.token_ids[-self.config.window :])[:size])
        return Draft.chains(drafts)  # an empty chain is a plain decoding step for its row


def continuation(ids: Sequence[int]) -> Sequence[int]:
    """Return what followed the previous occurrence of the last id; nothing if there is none."""
    for position in range(len(ids) - 2, -1, -1):
        if ids[position] == ids[-1]:
            return ids[position + 1 :]
    return []
