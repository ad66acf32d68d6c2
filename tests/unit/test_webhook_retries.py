"""When webhooks are tried again, and how many places a receiver has."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import takewhile

import pytest

from workers.webhook_places import SLOW_FOR_S, Places
from workers.webhook_retries import MAX_RETRY_AFTER_S, delay_s

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE, HOUR = 60, 3_600
SCHEDULE = [5, 5 * MINUTE, 30 * MINUTE, *(hours * HOUR for hours in (2, 5, 10, 14, 20, 24))]


def test_the_schedule_is_that_of_the_standard_and_ends() -> None:
    delays = [delay_s(tries, None, NOW, jitter=0) for tries in range(1, 12)]
    assert list(takewhile(lambda delay: delay is not None, delays)) == SCHEDULE
    assert delays[-2:] == [None, None]


def test_jitter_only_puts_off_and_scale_shortens() -> None:
    assert delay_s(2, None, NOW, jitter=1) == pytest.approx(330)
    assert delay_s(2, None, NOW, jitter=0, scale=0.01) == pytest.approx(3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120),
        (" 120 ", 120),
        ("1", 5),
        ("0", 5),
        ("-7", 5),
        ("soon", 5),
        ("", 5),
        ("١٢٠", 5),
        ("9" * 5_000, MAX_RETRY_AFTER_S),
        (format_datetime(NOW + timedelta(minutes=3), usegmt=True), 180),
        (format_datetime(NOW - timedelta(minutes=3), usegmt=True), 5),
        (format_datetime(NOW + timedelta(days=30), usegmt=True), MAX_RETRY_AFTER_S),
        ("Sun, 01 Mar 2026 12:03:00 -0000", 180),
    ],
)
def test_retry_after_puts_off_within_bounds_and_never_brings_forward(value: str, expected: float) -> None:
    assert delay_s(1, value, NOW, jitter=0) == expected


def test_retry_after_does_not_add_tries() -> None:
    assert delay_s(10, "60", NOW, jitter=0) is None


def test_a_receiver_has_its_places_and_those_under_way_are_counted() -> None:
    places = Places(4, slow_s=5)
    assert places.left(0) == {}
    for host in ("a", "a", "b"):
        places.begin(host)
    assert places.left(0) == {"a": 2, "b": 3}
    places.end("b", now=1, took_s=0.1)
    assert places.left(1) == {"a": 2}


def test_a_slow_receiver_keeps_one_place_until_it_is_quick_or_a_while_has_passed() -> None:
    places = Places(4, slow_s=5)
    for _ in range(3):
        places.begin("a")
    places.end("a", now=10, took_s=6)
    assert places.left(10) == {"a": -1}
    places.end("a", now=11, took_s=6)
    assert places.left(11) == {"a": 0}
    assert places.left(12 + SLOW_FOR_S) == {"a": 3}
    places.end("a", now=80, took_s=6)
    assert places.left(80) == {"a": 1}
    places.begin("a")
    places.end("a", now=81, took_s=0.1)
    assert places.left(81) == {}
