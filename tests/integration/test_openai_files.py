"""Files, driven by the official client against the running server."""

import asyncio
import io
import socket
import uuid
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from sqlalchemy import text

from jobs.store import files
from tests.api import Api
from tests.waiting import until


@pytest.fixture
def client(api: Api) -> Iterator[OpenAI]:
    """The official client, unchanged but for its address."""
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0) as made:
        yield made


def count(api: Api, table: str) -> int:
    """How many rows a table has."""
    with api.engine.begin() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_a_file_is_uploaded_listed_read_and_deleted(api: Api, client: OpenAI) -> None:
    content = b"".join(b'{"line": %d}\n' % n for n in range(200_000))
    assert len(content) > 2 * files.PART_BYTES
    made = client.files.create(
        file=("work.jsonl", io.BytesIO(content)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3_600},
    )
    assert (made.object, made.filename, made.purpose, made.status) == (
        "file",
        "work.jsonl",
        "batch",
        "processed",
    )
    assert made.bytes == len(content)
    assert made.expires_at == made.created_at + 3_600
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).read() == content
    with client.files.with_streaming_response.content(made.id) as answer:
        assert answer.headers["content-length"] == str(len(content))
        assert sum(map(len, answer.iter_bytes())) == len(content)
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert count(api, "file_parts") == 0


def test_lists_go_on_behind_a_cursor_in_both_orders(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.jsonl", b"{}"), purpose="batch").id for n in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == made
    page = client.files.list(limit=2, after=made[4])
    assert ([file.id for file in page.data], page.has_more) == ([made[3], made[2]], True)
    assert list(client.files.list(purpose="batch_output")) == []
    assert len(list(client.files.list(purpose="batch"))) == 5


def test_the_asynchronous_client_does_the_same(api: Api) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=api.key) as client:
            made = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
            assert [file.id async for file in client.files.list()] == [made.id]
            assert (await client.files.content(made.id)).content == b"{}\n"
            assert (await client.files.delete(made.id)).deleted

    asyncio.run(run())


def test_what_is_no_file_for_a_batch_is_refused_by_field(client: OpenAI) -> None:
    for purpose in ("fine-tune", "user_data"):
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("a.jsonl", b"{}"), purpose=purpose)
        assert refused.value.body["param"] == "purpose"  # type: ignore[index]  # the client's type is object
    with pytest.raises(openai.APIStatusError) as refused:
        client.files.create(
            file=("a.jsonl", b"{}"),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 60},
        )
    assert refused.value.body["param"] == "expires_after.seconds"  # type: ignore[index]  # as above


@pytest.mark.parametrize("body", [b"", b"no form", b"--x\r\nnonsense"])
def test_a_broken_form_is_refused(api: Api, body: bytes) -> None:
    for kind in ("multipart/form-data; boundary=x", "multipart/form-data", "text/plain"):
        answer = api.client.post("/v1/files", content=body, headers={"Content-Type": kind})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_other_tenants_see_nothing(api: Api, client: OpenAI) -> None:
    made = client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key_of("umbrella"), max_retries=0) as other:
        assert list(other.files.list()) == []
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
    assert client.files.retrieve(made.id).id == made.id


def test_a_lost_connection_leaves_nothing(api: Api) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"{}\n" * 600_000
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {2 * len(part)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + part)
    # Whatever the server still does with it is done before it answers the next upload.
    done = api.client.post("/v1/files", files={"file": ("b", b"{}")}, data={"purpose": "batch"})
    assert done.status_code == 200
    until(lambda: (count(api, "files"), count(api, "file_parts")) == (1, 1), what="one file alone")


def test_what_is_larger_than_the_limit_is_refused_while_it_comes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.openai.files_routes.MAX_FILE_BYTES", 100_000)
    answer = api.client.post("/v1/files", files={"file": ("a", bytes(200_000))}, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert count(api, "files") == 0


def test_an_expired_file_is_gone_and_is_swept(api: Api, client: OpenAI) -> None:
    kept, expired = (client.files.create(file=("a", b"{}"), purpose="batch").id for _ in range(2))
    with api.engine.begin() as connection:
        connection.execute(
            text("UPDATE files SET expires_at = now() - interval '1 s' WHERE id = :id"),
            {"id": uuid.UUID(expired.removeprefix("file-"))},
        )
    with pytest.raises(openai.NotFoundError):
        client.files.content(expired)
    assert [file.id for file in client.files.list()] == [kept]
    with api.engine.begin() as connection:
        assert files.forget_expired(connection) == 1
        assert files.forget_expired(connection) == 0
    assert count(api, "file_parts") == 1
