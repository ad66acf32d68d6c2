"""Webhook receivers that hang, drip, flood, lie about their address or show a wrong certificate."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine

from jobs import targets
from jobs.settings import Settings
from jobs.targets import Resolve
from tests.certificates import Authority
from tests.conftest import JobMaker
from tests.webhook_rig import Exchange, Rig, answer, hang

BUFFERS_BYTES = 64 * 1_048_576  # More than the sockets of both sides hold.


@pytest.fixture
def rig(engine: Engine, settings: Settings, new_job: JobMaker) -> Iterator[Rig]:
    """Receivers, deliveries and senders."""
    with closing(Rig(engine, settings, new_job)) as made:
        yield made


def test_a_hung_receiver_ends_in_a_recorded_timeout(rig: Rig) -> None:
    rig.notify(rig.receive(hang).url)
    rig.send(timeout_s=0.3, retry_scale=1.0)
    one = rig.attempted()
    assert (one.status, one.codes) == ("pending", [None])
    assert one.errors == ["no answer within 0.3 s"]


def test_a_hung_receiver_with_much_to_get_slows_no_other(rig: Rig) -> None:
    stuck, healthy = rig.receive(hang), rig.receive()
    rig.notify(stuck.url, 200)
    rig.notify(healthy.url, 50)
    sender = rig.send(timeout_s=600.0, concurrency=8, per_host=4)
    assert len({request.id for request in healthy.wait(50)}) == 50
    assert len(stuck.wait(4)) == 4, "no more than its places"
    assert healthy.most_at_once <= 4
    rig.notify(healthy.url)
    sender.wake()
    healthy.wait(51)
    stuck.released.set()
    stuck.wait(8)


def drip_headers(exchange: Exchange) -> None:
    exchange.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not exchange.released.wait(0.05):
        exchange.write(b"x")


def drip_body(exchange: Exchange) -> None:
    exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not exchange.released.wait(0.05):
        exchange.write(b"x")


def test_a_dripping_answer_ends_at_the_time_limit(rig: Rig) -> None:
    rig.notify(rig.receive(drip_headers).url)
    rig.send(timeout_s=0.5, retry_scale=1.0)
    one = rig.attempted()
    assert one.errors == ["no answer within 0.5 s"]
    assert one.durations_ms[0] < 3_000


def test_a_dripping_body_ends_too_and_the_status_counts(rig: Rig) -> None:
    rig.notify(rig.receive(drip_body).url)
    rig.send(timeout_s=0.5)
    [one] = rig.ended()
    assert (one.status, one.codes) == ("delivered", [200])
    assert one.durations_ms[0] < 3_000


def test_an_endless_body_is_cut(rig: Rig) -> None:
    written_bytes: list[int] = []

    def flood(exchange: Exchange) -> None:
        exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while sum(written_bytes) < 2 * BUFFERS_BYTES:
            exchange.write(b"x" * 1_048_576)
            written_bytes.append(1_048_576)

    rig.notify(rig.receive(flood).url)
    rig.send()
    [one] = rig.ended()
    assert (one.status, one.codes) == ("delivered", [200])
    assert sum(written_bytes) < BUFFERS_BYTES


def test_answers_that_are_no_http_are_failures_and_not_quoted(rig: Rig) -> None:
    def garbage(exchange: Exchange) -> None:
        exchange.write(b"canary of the answer\r\n\r\n")

    def endless_header(exchange: Exchange) -> None:
        exchange.write(b"HTTP/1.1 200 OK\r\nX-Big: " + b"canary" * 100_000 + b"\r\n\r\n")

    def close(exchange: Exchange) -> None:
        exchange.handler.close_connection = True

    rig.notify(rig.receive(garbage, endless_header, close, answer(204)).url)
    rig.send()
    [one] = rig.ended()
    assert one.codes == [None, None, None, 204]
    assert one.errors[:2] == ["the answer is not valid HTTP"] * 2
    assert "canary" not in str(one.errors)


def test_a_refused_connection_is_a_failure(rig: Rig) -> None:
    receiver = rig.receive()
    receiver.close()
    rig.notify(receiver.url)
    rig.send(retry_scale=1.0)
    assert rig.attempted().errors[0].startswith("cannot connect")


def test_a_name_that_turns_to_loopback_after_the_submit_is_refused_at_connect(rig: Rig) -> None:
    receiver = rig.receive()
    answers = iter([["93.184.215.14"]])

    def rebinding(host: str, port: int) -> list[str]:
        return next(answers, ["127.0.0.1"])

    url = f"https://rebinding.example:{receiver.port}/hook"
    targets.check(url, (), rebinding)
    rig.notify(url)
    rig.send(rebinding, allow=(), retry_scale=1.0)
    one = rig.attempted()
    assert (one.status, one.codes) == ("pending", [None])
    assert one.errors[0].startswith("refused: 127.0.0.1 is not a public address")
    assert receiver.ids == []


def test_another_of_its_addresses_is_tried_where_one_does_not_answer(rig: Rig) -> None:
    receiver = rig.receive()
    rig.notify(f"http://hooks.example:{receiver.port}/hook")
    rig.send(lambda host, port: ["127.0.0.2", "127.0.0.1"])
    assert [one.codes for one in rig.ended()] == [[204]]


@pytest.fixture
def stuck_lookups() -> Iterator[Resolve]:
    """A name server that never answers for one name."""
    released = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        if host == "stuck.example":
            released.wait()
        return ["127.0.0.1"]

    yield resolve
    released.set()


def test_lookups_that_hang_take_nothing_from_others(rig: Rig, stuck_lookups: Resolve) -> None:
    healthy = rig.receive()
    rig.notify("http://stuck.example/hook", 50)
    rig.notify(healthy.url, 20)
    rig.send(stuck_lookups, timeout_s=0.5, concurrency=4, per_host=2, retry_scale=1.0)
    assert len({request.id for request in healthy.wait(20)}) == 20


@pytest.mark.parametrize(("named", "accepted"), [("hooks.example", True), ("other.example", False)])
def test_tls_is_checked_against_the_name_though_an_address_is_connected_to(
    rig: Rig, tmp_path: Path, named: str, accepted: bool
) -> None:
    authority, asked = Authority(tmp_path), list[str]()
    receiver = rig.receive(tls=authority.server(named, asked.append))
    rig.notify(f"https://hooks.example:{receiver.port}/hook")
    rig.send(lambda host, port: ["127.0.0.1"], authority.client(), retry_scale=1.0)
    one = rig.attempted()
    assert asked == ["hooks.example"]
    assert (one.codes == [204]) == accepted == (len(receiver.ids) == 1)
    assert ("certificate verify failed" in one.errors[0]) != accepted
