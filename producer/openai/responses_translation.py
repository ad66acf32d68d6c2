"""Turns a form for a response, and the conversation before it, into a request of ours."""

from collections.abc import Mapping, Sequence

from jobs.domain.lanes import Kind
from jobs.domain.requests import Message, Role
from producer.openai.responses_form import LOGPROBS, CreateResponse, InputToCount
from producer.refusals import Code, Refusal
from producer.request import ChatMessage, Request

# Our names of what a refusal may be about, and OpenAI's.
_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def request_of(form: CreateResponse, before: Sequence[Message] = ()) -> Request:
    """The request for the answer to `before` and the form's input. Raises `Refusal`.

    Its kind is that of a ticket: the service tier decides it later. What is longer than its lane is refused,
    not answered in windows.
    """
    logprobs = form.top_logprobs is not None or LOGPROBS in (form.include or ())
    wanted = form.text.format.wanted() if form.text and form.text.format else None
    return Request(
        kind=Kind.TICKET,
        model=form.model,
        messages=messages_of(form, before),
        max_tokens=form.max_output_tokens,
        temperature=form.temperature,
        top_p=form.top_p,
        logprobs=logprobs or None,
        top_logprobs=form.top_logprobs,
        response_format=wanted,
        metadata=form.metadata,
        windows=False,
    )


def renamed(refusal: Refusal) -> Refusal:
    """The same refusal of a request, by OpenAI's names."""
    ours = (refusal.field or "").partition("[")[0].partition(".")[0]
    refusal.field = _NAMES.get(ours, refusal.field)
    return refusal


def messages_of(form: InputToCount, before: Sequence[Message] = ()) -> list[ChatMessage]:
    """The conversation with what was said in it; an empty answer says nothing. Raises `Refusal`."""
    own = [Message(message.speaker, message.text) for message in form.input or ()]
    first = [Message(Role.SYSTEM, form.instructions or "")]
    turns = [turn for turn in (*first, *before, *own) if turn.content.strip()]
    if not turns:
        raise Refusal(Code.EMPTY, "Text is empty or blank", field="input", remedy="Fill it in.")
    return [ChatMessage(role=turn.role, content=turn.content) for turn in turns]
