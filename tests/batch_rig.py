"""Lines of batches, and the control process's part in batches in this process."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from jobs.broker import Announcer
from producer.openai.batch_lines import OpenAIBatches
from tests.api import Api
from workers.batches import Batches

CHAT: Final = "/v1/chat/completions"


def line(number: int, **body: Any) -> dict[str, Any]:
    """A right line, its body changed by what is given."""
    asked = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": f"What is {number} and {number}?"}],
        "max_tokens": 8,
    }
    return {"custom_id": f"request-{number}", "method": "POST", "url": CHAT, "body": {**asked, **body}}


def jsonl(*lines: Any) -> bytes:
    """A file of these lines; a text is taken as it is."""
    return "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines).encode()


@contextmanager
def stepping(api: Api) -> Iterator[None]:
    """Every batch moves on until the block ends."""
    stop, announcer = threading.Event(), Announcer(api.settings)
    batches = Batches(api.engine, announcer, OpenAIBatches(api.settings), stop.is_set)

    def repeat() -> None:
        while not stop.wait(0.05):
            batches.step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        announcer.close()
