"""Sampling parameters: the knobs of one request, validated."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class SamplingParams(BaseModel):
    """How tokens are drawn from the target model, and when a request ends. Names as in vLLM and transformers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.0, ge=0.0, le=100.0, description="0 puts all probability on the most likely token.")
    top_k: int = Field(0, ge=0, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Keep the smallest set of tokens with this much probability.")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the most likely token's.")
    repetition_penalty: float = Field(1.0, gt=0.0, description="Divides the logits of tokens seen in prompt or output.")
    max_new_tokens: int = Field(128, ge=1, description="The request ends after this many new tokens.")
    min_new_tokens: int = Field(0, ge=0, description="EOS has probability 0 before this many new tokens.")
    stop: tuple[str, ...] = Field((), description="The request ends when its text contains one of these strings.")
    ignore_eos: bool = Field(False, description="EOS does not end the request: fixed-length runs.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every random stream.")

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
