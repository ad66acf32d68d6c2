"""Ids as OpenAI's clients know them: a prefix, and the hexadecimal digits of ours."""

import uuid
from enum import StrEnum


class Prefix(StrEnum):
    """What an id is of."""

    RESPONSE = "resp_"
    MESSAGE = "msg_"
    CHAT_COMPLETION = "chatcmpl-"
    FILE = "file-"
    BATCH = "batch_"
    BATCH_REQUEST = "batch_req_"
    WEBHOOK_ENDPOINT = "whe_"
    WEBHOOK_EVENT = "evt_"


def shown(prefix: Prefix, own: uuid.UUID) -> str:
    """The id that a client sees."""
    return f"{prefix}{own.hex}"


def own(prefix: Prefix, shown: str) -> uuid.UUID | None:
    """Our id of what a client names; None where it can name nothing of that kind."""
    digits = shown.removeprefix(prefix)
    if digits == shown or len(digits) != 32:
        return None
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        return None
