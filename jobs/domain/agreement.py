"""How far two answers to one prompt agree, token by token: what another precision costs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest

SEGMENT_TOKENS = 50
# Chinese, Japanese and Korean characters, words, and signs, each one piece.
_PIECE = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+|[^\w\s]"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's two answers.

    `agreed` of `tokens` positions hold the same token; `segments` says it for each 50 positions, so that
    drift shows. `logprob_gap` is the reference's log-probability (natural) less the candidate's, the mean
    over the positions before the answers part; None where it is not known.
    """

    exact: bool
    agreed: int
    tokens: int
    segments: tuple[tuple[int, int], ...]
    logprob_gap: float | None = None

    @property
    def agreement(self) -> float:
        """The share of positions that hold the same token; 1 for two empty answers."""
        return self.agreed / self.tokens if self.tokens else 1.0


def pieces(text: str) -> list[str]:
    """Words, signs and CJK characters: in place of tokens where an engine does not tell them."""
    return _PIECE.findall(text)


def compare(
    reference: Sequence[str],
    candidate: Sequence[str],
    logprobs: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Comparison:
    """Compare two answers by their tokens; `logprobs` are those of the reference's and the candidate's."""
    same = [left == right for left, right in zip_longest(reference, candidate)]
    segments = tuple(
        (sum(part), len(part))
        for start in range(0, len(same), SEGMENT_TOKENS)
        if (part := same[start : start + SEGMENT_TOKENS])
    )
    gap = None
    together = len(list(takewhile(bool, same)))
    if logprobs is not None and together:
        left, right = (sum(values[:together]) for values in logprobs)
        gap = (left - right) / together
    return Comparison(all(same), sum(same), len(same), segments, gap)


def drift(comparisons: Iterable[Comparison]) -> list[float]:
    """The agreement in each segment of 50 positions, over all answers that reach it."""
    totals: list[tuple[int, int]] = []
    for comparison in comparisons:
        pairs = zip_longest(totals, comparison.segments, fillvalue=(0, 0))
        totals = [(agreed + more, of + others) for (agreed, of), (more, others) in pairs]
    return [agreed / of for agreed, of in totals]
