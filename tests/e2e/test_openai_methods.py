"""The table of the official client's methods says what came of calling them."""

from pathlib import Path

from openai import OpenAI

from benchmarks import openai_methods
from jobs.secrets import new_signing_secret
from trilane.stack import local
from trilane.stack.receiver import Receiver

PAGE = Path(__file__).parents[2] / "docs/openai-methods.md"


def test_the_table_of_methods_is_what_a_stack_answers(stack: local.Stack) -> None:
    with (
        Receiver(new_signing_secret()) as receiver,
        OpenAI(base_url=f"{stack.api}/v1", api_key=stack.api_key, max_retries=0) as client,
    ):
        rows = openai_methods.outcomes(client, stack.settings.model, receiver.url)
    assert PAGE.read_text() == openai_methods.markdown(rows)
