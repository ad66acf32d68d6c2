"""What a guard is: it passes text on, holds some back, and may end the stream."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from jobs.domain.outcomes import Choice, FinishReason


class GuardUnusable(ValueError):
    """A guard cannot do what the lane's policy asks of it; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The text that may go on now, and why the stream ends with it, if it does."""

    text: str
    ends: FinishReason | None = None


class Guard(Protocol):
    """Watches one stream. After it ended that, it is not asked again."""

    def see(self, text: str, token_ids: tuple[int, ...], *, last: bool) -> Passed:
        """Take the stream's next piece; the `last` holds nothing back. Ids are empty where none are known."""
        ...

    def judged(self, choice: Choice) -> Choice:
        """The same for a whole answer, streamed or not."""
        ...


def shortened(choice: Choice, length: int, reason: FinishReason) -> Choice:
    """The answer's first `length` characters, with the log-probabilities of the tokens within them."""
    logprobs = choice.logprobs
    if logprobs is not None:
        ends = accumulate(len(one.token) for one in logprobs)
        logprobs = logprobs[: sum(end <= length for end in ends)]
    return replace(choice, text=choice.text[:length], finish_reason=reason, logprobs=logprobs)
