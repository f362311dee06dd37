"""Sampling parameters: the knobs of one request, validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, field_validator

TokenId = Annotated[int, Field(ge=0)]


class SamplingOptions(TypedDict, total=False):
    """What ``SamplingParams``, ``Pipeline.generate`` and its kin take by keyword; the fields say what they mean."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    suppress_tokens: Sequence[int]
    bad_words_ids: Sequence[Sequence[int]]
    no_repeat_ngram_size: int
    max_new_tokens: int
    min_new_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: bool
    seed: int


class SamplingParams(BaseModel):
    """How tokens are drawn from the target model, and when a request ends. Names as in vLLM and transformers.

    Each knob sees the prefix of its own place in a block, so it does the same with and without speculation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.0, ge=0.0, le=100.0, description="0 puts all probability on the most likely token.")
    top_k: int = Field(0, ge=0, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Keep the smallest set of tokens with this much probability.")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the most likely token's.")
    repetition_penalty: float = Field(1.0, gt=0.0, description="Divides the logits of tokens seen in prompt or output.")
    presence_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Taken off the logits of tokens that the output has."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Taken off a token's logit once for each time that the output has it."
    )
    logit_bias: tuple[tuple[TokenId, float], ...] = Field((), description="Added to the logits: {token id: bias}.")
    suppress_tokens: tuple[TokenId, ...] = Field((), description="Token ids that are never drawn.")
    bad_words_ids: tuple[tuple[TokenId, ...], ...] = Field((), description="Sequences of ids that are never completed.")
    no_repeat_ngram_size: int = Field(0, ge=0, description="No n-gram of this size occurs twice; 0 is off.")
    max_new_tokens: int = Field(128, ge=1, description="The request ends after this many new tokens.")
    min_new_tokens: int = Field(0, ge=0, description="EOS has probability 0 before this many new tokens.")
    stop: tuple[str, ...] = Field((), description="The request ends when its output contains one of these strings.")
    stop_token_ids: tuple[TokenId, ...] = Field((), description="Ids that end the request beside the model's EOS.")
    ignore_eos: bool = Field(False, description="EOS does not end the request: fixed-length runs.")
    logprobs: bool = Field(False, description="Report the log-probability of every new token.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every random stream.")

    if TYPE_CHECKING:  # what is read is looser than what is kept: one stop string, a mapping of biases

        def __init__(self, **options: Unpack[SamplingOptions]) -> None: ...

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty")
        return value

    @field_validator("bad_words_ids")
    @classmethod
    def _words_have_tokens(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if any(not word for word in value):
            raise ValueError("a banned sequence must have at least one token id")
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        return tuple(value.items()) if isinstance(value, Mapping) else value

    def largest_token_id(self) -> int:
        """Return the largest id that any knob names, −1 if none does."""
        named = [*self.suppress_tokens, *self.stop_token_ids, *(token for token, _ in self.logit_bias)]
        return max([*named, *(token for word in self.bad_words_ids for token in word)], default=-1)
