"""Which lane a request of OpenAI's API gets."""

import uuid

import pytest

from jobs.domain.jobs import Surface
from jobs.domain.lanes import Kind
from jobs.settings import load
from jobs.store.tenants import Tenant
from jobs.tokenizer import TokenCounter
from producer.openai import intake
from producer.prepare import Preparer
from producer.refusals import Code, Refusal
from producer.request import Request

PREPARER = Preparer(load(database_url="", redis_url="", engine={"name": "sim"}))
TENANT = Tenant(uuid.uuid4(), "acme", None)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is counted."""
    found: list[int] = []
    count = TokenCounter.count

    def counting(self: TokenCounter, messages: object) -> int:
        found.append(count(self, messages))  # type: ignore[arg-type]  # as it was given
        return found[-1]

    monkeypatch.setattr(TokenCounter, "count", counting)
    return found


@pytest.mark.parametrize(("words", "lane"), [(10, "hot"), (6_000, "cold")])
def test_a_prompt_is_counted_once_whichever_lane_it_fits(counted: list[int], words: int, lane: str) -> None:
    request = Request(kind=Kind.CHAT, prompt="word " * words, max_tokens=10, windows=False)
    job = intake.prepare(PREPARER, TENANT, request, "priority", Surface.CHAT)
    assert (job.lane, job.kind, job.surface, [job.prompt_tokens]) == (lane, Kind.CHAT, Surface.CHAT, counted)


def test_what_fits_no_lane_is_refused_after_one_count(counted: list[int]) -> None:
    request = Request(kind=Kind.CHAT, prompt="word " * 40_000, max_tokens=10, windows=False)
    with pytest.raises(Refusal) as refused:
        intake.prepare(PREPARER, TENANT, request, "priority", Surface.CHAT)
    assert (refused.value.code, len(counted)) == (Code.PROMPT_TOO_LONG, 1)
