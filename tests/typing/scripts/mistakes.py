"""Mistakes that an editor should underline: a line with a comment must be an error of that kind, and no other line."""

from collections.abc import Sequence

from quasar import Acceptor, Context, Draft, Drafter, Nothing, SamplingParams, load_pipeline  # attr-defined
from quasar.core import rules  # attr-defined
from quasar.models import ModelVerifier


class WithoutAnnotation(Drafter):
    name = "without"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        length: int = 3

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        context.rows[0].token_ids[0] = 1  # index
        return Draft.chains([[self.config.length]])  # attr-defined, misc


class OfStrings(Acceptor):
    name = "of_strings"
    takes = "point_mass"  # assignment


pipeline = load_pipeline(drafter=3)  # arg-type
pipeline.generate("text", temprature=1.0)  # call-overload
pipeline.generate(["text"], on_text=print)  # call-overload
pipeline.stream("text", max_new_tokens="many")  # arg-type
pipeline.conversation(top_k=0.5)  # arg-type
length: float = pipeline.generate("text").generation.acceptance_length  # assignment
pipeline.generate("text").txt  # attr-defined
pipeline.generate(["text"]).text  # attr-defined
SamplingParams(stop=3)  # arg-type
pipeline.tokenizer.render("text")  # arg-type


class Louder(ModelVerifier):
    def adjust(self, logits: str, context: Context, draft: Draft) -> str:  # override
        return logits
