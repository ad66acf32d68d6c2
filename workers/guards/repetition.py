"""Ends a text that goes in circles: too few different tokens among the last ones."""

from collections import deque
from collections.abc import Hashable

from jobs.domain.outcomes import Choice, FinishReason
from workers.guards.seam import Passed


class Repetition:
    """A full window of `window` tokens with fewer than `distinct` different ones ends the stream.

    Where the engine tells no ids, each piece of text counts as one token: the same for engines that send a
    piece per token, and coarser, so slower to fire, for others.
    """

    def __init__(self, window: int, distinct: int) -> None:
        self._recent: deque[Hashable] = deque(maxlen=window)
        self._window, self._distinct = window, distinct

    def see(self, text: str, token_ids: tuple[int, ...], *, last: bool) -> Passed:
        """Pass the text on; the piece that completes the circle is the last."""
        for token in token_ids or ((text,) if text else ()):
            self._recent.append(token)
            if len(self._recent) == self._window and len(set(self._recent)) < self._distinct:
                return Passed(text, FinishReason.REPETITION)
        return Passed(text)

    def judged(self, choice: Choice) -> Choice:
        """As it is: what was generated beside the stream is done, and there is nothing left to save."""
        return choice
