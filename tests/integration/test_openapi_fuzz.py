"""The API's own document, explored: whatever is sent to whichever route, none crashes."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounds
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode

from tests.api import Api
from tests.processes import Processes

Operation = APIOperation[Any, Any, Any, Any]
EXAMPLES = 10  # for each route, once by its document and once against it


@pytest.fixture
def operations(api: Api, processes: Processes) -> Iterator[list[Operation]]:
    """All operations of the document, with a worker that answers what is right after all."""
    processes.worker("hot,warm,cold")
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    yield [schema[path][method] for path in schema for method in schema[path]]


def crashes(api: Api, operation: Operation, mode: GenerationMode) -> list[str]:
    """What a route answers with a server's error, by what was sent to it."""
    found: dict[int, str] = {}
    key = {"Authorization": f"Bearer {api.key}"}

    @given(case=operation.as_strategy(generation_mode=mode))
    @bounds(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def explore(case: Case[Any]) -> None:
        answer: Any = case.call(headers=key, timeout=20)
        if answer.status_code >= 500:
            found[answer.status_code] = f"{answer.status_code}: {case.as_curl_command()}"

    with suppress(Unsatisfiable):  # where nothing can be wrong
        explore()
    return list(found.values())


def test_no_route_crashes(api: Api, operations: list[Operation]) -> None:
    assert len(operations) > 30
    found = [
        crash
        for operation in operations
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for crash in crashes(api, operation, mode)
    ]
    assert found == []
