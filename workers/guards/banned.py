"""Keeps banned phrases out of the output: text that may begin one waits until it is known."""

from collections import deque
from dataclasses import replace

from jobs.domain.outcomes import Choice, FinishReason, TokenLogprob
from workers.guards.phrases import Automaton, extends, folded, normalised, ordered
from workers.guards.seam import Passed, shortened


def compiled(phrases: tuple[str, ...]) -> Automaton:
    """The phrases made ready to be looked for in many streams."""
    return Automaton(normalised(phrase) for phrase in phrases)


class Banned:
    """Cuts the stream before the first banned phrase and ends it there.

    A phrase is found wherever it stands, within words too, whatever its case, width, ligatures, spaces and
    way of accents (see `phrases.folded`); a letter with another accent is another letter. No more text is
    held back than may begin a phrase.
    """

    def __init__(self, phrases: Automaton) -> None:
        """`phrases` comes from `compiled`; it is shared, never changed."""
        self._phrases = phrases
        self._state = 0
        self._held: deque[tuple[str, int]] = deque()  # characters, and how many folded ones each became
        self._held_folded = 0
        self._marks: list[str] = []  # they wait for the next letter: until then more may come
        self._after_space = False

    def see(self, text: str, token_ids: tuple[int, ...], *, last: bool) -> Passed:
        """Pass on what begins no phrase."""
        for character in text:
            before = self._held_folded
            if self._takes(character):
                return self._cut()
            self._held.append((character, self._held_folded - before))
        if last and self._confirms():
            return self._cut()
        waiting = 0 if last else self._phrases.depth[self._state] + len(self._marks)
        return Passed(self._released(waiting))

    def judged(self, choice: Choice) -> Choice:
        """The answer up to the first phrase; among the likeliest tokens, those without one."""
        passed = self._fresh().see(choice.text, (), last=True)
        if passed.ends:
            choice = shortened(choice, len(passed.text), passed.ends)
        if choice.logprobs is None:
            return choice
        # The tokens once more by themselves: their text need not be the answer's, character by character.
        passed = self._fresh().see("".join(one.token for one in choice.logprobs), (), last=True)
        if passed.ends:
            logprobs = shortened(choice, len(passed.text), passed.ends).logprobs
            choice = replace(choice, logprobs=logprobs, finish_reason=passed.ends)
        return replace(choice, logprobs=tuple(map(self._without, choice.logprobs or ())))

    def _without(self, one: TokenLogprob) -> TokenLogprob:
        kept = ((token, logprob) for token, logprob in one.top if self._is_clean(token))
        return replace(one, top=tuple(kept))

    def _is_clean(self, text: str) -> bool:
        return self._fresh().see(text, (), last=True).ends is None

    def _fresh(self) -> "Banned":
        return Banned(self._phrases)

    def _takes(self, character: str) -> bool:
        """Step over one character of the text; True once a phrase stands before it."""
        for part in folded(character):
            if extends(part):
                self._marks.append(part)
                self._held_folded += 1
                self._after_space = False
                continue
            if self._confirms():
                return True
            space = part == " "
            if not (space and self._after_space):
                self._state = self._phrases.step(self._state, part)
                self._held_folded += 1
            self._after_space = space
        return False

    def _confirms(self) -> bool:
        """Whether a phrase ends here, now that the last letter is known to get no more marks."""
        for mark in ordered(self._marks):
            self._state = self._phrases.step(self._state, mark)
        self._marks.clear()
        return self._phrases.found[self._state] > 0

    def _cut(self) -> Passed:
        return Passed(self._released(self._phrases.found[self._state]), FinishReason.CONTENT_FILTER)

    def _released(self, keep: int) -> str:
        """The held characters but for those that the last `keep` folded ones came from."""
        released: list[str] = []
        while self._held and self._held_folded - self._held[0][1] >= keep:
            character, parts = self._held.popleft()
            released.append(character)
            self._held_folded -= parts
        return "".join(released)
