"""Makes favoured phrases likelier: a bias on each of their tokens, beside the job's own."""

from collections.abc import Mapping
from dataclasses import replace

from jobs.domain.requests import Sampling
from jobs.tokenizer import TokenCounter
from workers.guards.seam import GuardUnusable


def biases(phrases: tuple[str, ...], bias: float, tokenizer: TokenCounter) -> Mapping[str, float]:
    """Token id -> `bias` for the tokens of each phrase, as it stands at a text's beginning and after a space.

    Raises `GuardUnusable` where the model's tokenizer is not here.
    """
    ids = tokenizer.ids([*phrases, *(f" {phrase}" for phrase in phrases)])
    if ids is None:
        raise GuardUnusable(
            "phrases can be favoured only with the model's tokenizer: set engine.model_path to a model that"
            " has one, or leave guards.favoured_file out"
        )
    return {str(token): bias for tokens in ids for token in tokens}


def favouring(sampling: Sampling, biases: Mapping[str, float]) -> Sampling:
    """The sampling with the biases added; where the job has one of its own for a token, that stands."""
    return replace(sampling, logit_bias={**biases, **(sampling.logit_bias or {})})
