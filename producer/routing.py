"""Which lane a request goes to, why, and how the caller is told where none takes it."""

from collections.abc import Mapping

from jobs.domain.lanes import NOT_WITH_SPECULATION, LanePolicy, ParameterRefused, PromptTooLong, route
from jobs.domain.requests import Message, Sampling
from jobs.domain.windows import document_of
from jobs.tokenizer import TokenCounter
from producer.refusals import Code, Refusal
from producer.request import Request


class Router:
    """Routes requests by the lanes' policies."""

    def __init__(self, lanes: Mapping[str, LanePolicy], counter: TokenCounter) -> None:
        """Route to `lanes`, given in rank order; `counter` counts what windows would repeat."""
        self._lanes, self._counter = lanes, counter

    def route(
        self, request: Request, sampling: Sampling, messages: tuple[Message, ...], prompt_tokens: int
    ) -> tuple[str, str | None]:
        """The lane, and what the caller should know of how it was chosen.

        The prompt counts once, however many answers (`n`) it gets: they share its KV cache.
        """
        if request.lane is not None and request.lane not in self._lanes:
            names = ", ".join(self._lanes)
            raise Refusal(
                Code.UNKNOWN_LANE,
                "No such lane",
                field="lane",
                limit=names,
                remedy=f"Leave it out, or name one of {names}.",
            )

        def lane(*given: str) -> str:
            return route(
                self._lanes,
                request.kind,
                prompt_tokens,
                sampling.max_tokens,
                request.lane,
                given=given,
                windows=sampling.windows,
            )

        try:
            chosen = lane(*(name for name in NOT_WITH_SPECULATION if getattr(sampling, name)))
        except ParameterRefused as refused:
            raise _refused(refused) from None
        except PromptTooLong as refused:
            raise _too_long(refused, request) from None
        if prompt_tokens + sampling.max_tokens > self._lanes[chosen].max_model_len:
            self._check_room(request, sampling, messages, chosen)
            return chosen, f"longer than lane {chosen} takes at once, so it is answered in windows"
        if chosen != (usual := lane()):
            return chosen, f"lane {usual} decodes speculatively, which does not go with its parameters"
        return chosen, None

    def _check_room(
        self, request: Request, sampling: Sampling, messages: tuple[Message, ...], lane: str
    ) -> None:
        """Refuse what would be answered in windows, but leaves no room for one beside what is repeated."""
        policy, document = self._lanes[lane], document_of(messages)
        repeated = self._counter.count((*messages[:document], *messages[document + 1 :]))
        size = policy.windows.tokens if policy.windows else 0
        needed = repeated + size + sampling.max_tokens
        if needed > policy.max_model_len:
            raise _too_long(PromptTooLong(needed, lane, policy.max_model_len, None), request)


def _refused(refused: ParameterRefused) -> Refusal:
    other = f"Send it to the {refused.fits} lane, or leave it out." if refused.fits else "Leave it out."
    return Refusal(
        Code.UNSUPPORTED_PARAMETER,
        f"Lane {refused.lane} decodes speculatively, which does not go with it",
        field=refused.parameter,
        remedy=other,
    )


def _too_long(refused: PromptTooLong, request: Request) -> Refusal:
    message = str(refused)
    remedy = f"Send it to the {refused.fits} lane." if refused.fits else "Shorten the prompt."
    if not request.windows and refused.fits is None:
        remedy = "Shorten the prompt, or allow windows."
    return Refusal(
        Code.PROMPT_TOO_LONG,
        message[0].upper() + message[1:],
        field="prompt" if request.messages is None else "messages",
        limit=refused.limit,
        remedy=remedy,
    )
