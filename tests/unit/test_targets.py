"""Where a webhook may go: hostile spellings, special addresses, names that change, allowed networks."""

import socket
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_hardened.ip_filter import InvalidIPAddress, filter_host

from jobs import targets
from jobs.targets import Resolve, Target, TargetRefused

PUBLIC = "93.184.215.14"
LOOPBACK = ("127.0.0.0/8", "::1/128")

HOSTILE = [
    "https://127.0.0.1/",
    "https://127.0.0.1:8443/hook",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.1./",
    "https://127.0.0.0x1/",
    "https://0/",
    "https://0.0.0.0/",
    "https://[::]/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::a9fe:a9fe]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fd00:ec2::254]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://169.254.169.254/latest/meta-data/",
    "https://169.254.170.2/v2/credentials",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://192.0.0.192/",
    "https://198.18.0.1/",
    "https://203.0.113.7/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST:8443/",
    "https://foo.localhost/",
    "https://metadata.google.internal/computeMetadata/v1/",
    "https://printer.local/",
    "https://db/",
    "https://①②⑦.0.0.1/",
    "https://127。0。0。1/",
    "https://ｌocalhost/",
    "https://127%2e0.0.1/",
    "https://user:secret@example.com/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1#@example.com/",
    "https://127.0.0.1\\@example.com/",
    "https://example.com\\.127.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com\t/",
    "https://exam\nple.com/",
    "https://example.com\x00/",
    " https://example.com/",
    "https://example.com/a b",
    "https://example.com./",
    "https://example..com/",
    "https://-example.com/",
    f"https://{'a' * 64}.com/",
    f"https://{'a.' * 130}com/",
    "https://münchen.example/",
    "https://example.com:0/",
    "https://example.com:22/",
    "https://example.com:25/",
    "https://example.com:65536/",
    "https://example.com:443443/",
    "https://example.com:/",
    "https://example.com:-1/",
    "https://[::1",
    "https://[]/",
    "https:///path",
    "https://",
    "https:example.com",
    "//example.com/",
    "example.com",
    "",
    "http://example.com/",
    "http://8.8.8.8/",
    "http://127.0.0.1:9/",
    "http://unknown.example/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "javascript:alert(1)",
    "ws://example.com/",
    f"https://example.com/{'a' * 2_048}",
]


def system(host: str, port: int) -> list[str]:
    """Answers as a machine's resolver would, whose private names are known: odd spellings are addresses."""
    names = {"example.com": [PUBLIC], "localhost": ["127.0.0.1", "::1"], "db": ["10.1.2.3"]}
    if host in names:
        return names[host]
    if host.rpartition(".")[2].isalpha():
        raise socket.gaierror(socket.EAI_NONAME, "unknown")
    return targets.resolve(host, port)


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(TargetRefused) as refused:
        targets.check(url, (), system)
    assert refused.value.reason
    assert "secret" not in refused.value.reason


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "HTTPS://Example.COM/Hook?a=1&b=%20",
        "https://example.com:8443/",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/hook",
        "https://xn--mnchen-3ya.example/",
    ],
)
def test_a_public_receiver_is_accepted_over_https(url: str) -> None:
    targets.check(url, (), system)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://A.example?x=1", Target("https", "a.example", 443, "/?x=1")),
        ("http://a.example:8080/P?q", Target("http", "a.example", 8080, "/P?q")),
        ("https://[2606:4700:0::1]/", Target("https", "2606:4700::1", 443, "/")),
        ("https://a.example/x@y?u=http://z", Target("https", "a.example", 443, "/x@y?u=http://z")),
    ],
)
def test_a_url_is_read_into_what_will_be_requested(url: str, target: Target) -> None:
    assert targets.parse(url) == target


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("https://a.example:443/", "a.example"),
        ("https://a.example:80/", "a.example:80"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_host_header_has_the_port_only_where_it_is_not_the_default(url: str, header: str) -> None:
    assert targets.parse(url).authority == header


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9000/hook", "http://localhost:9000/", "https://[::1]:9000/", "https://127.0.0.1/"],
)
def test_an_allowed_network_is_reached_over_http_too(url: str) -> None:
    targets.check(url, LOOPBACK, system)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://example.com/", "http://[::ffff:127.0.0.1]/"])
def test_allowing_one_network_opens_no_other(url: str) -> None:
    with pytest.raises(TargetRefused):
        targets.check(url, LOOPBACK, system)


@pytest.mark.parametrize("addresses", [["10.0.0.1", PUBLIC], [PUBLIC, "127.0.0.1"], [PUBLIC, "::1"]])
def test_a_name_with_public_and_private_addresses_is_refused_even_where_the_private_is_allowed(
    addresses: list[str],
) -> None:
    with pytest.raises(TargetRefused):
        targets.permit(targets.parse("https://a.example/"), addresses, ("127.0.0.0/8", "::1/128"))


def test_a_host_without_addresses_is_refused() -> None:
    with pytest.raises(TargetRefused):
        targets.permit(targets.parse("https://a.example/"), [], ())


def test_a_wrong_network_of_the_operator_is_an_error_and_not_a_refusal() -> None:
    with pytest.raises(ValueError, match="host bits"):
        targets.networks(("10.0.0.1/8",))


@pytest.fixture
def hanging() -> Iterator[Resolve]:
    released = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        released.wait()
        return ["127.0.0.1"]

    yield resolve
    released.set()


def test_a_name_server_that_hangs_holds_a_submit_up_for_a_bounded_time(
    hanging: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "resolve", hanging)
    monkeypatch.setattr(targets, "LOOKUP_TIMEOUT_S", 0.01)
    for _ in range(targets.LOOKUPS_AT_ONCE + 2):
        targets.check("https://example.com/", ())
    with pytest.raises(TargetRefused):
        targets.check("http://example.com/", LOOPBACK)


@given(st.ip_addresses())
def test_no_address_passes_that_requests_hardened_refuses(address: IPv4Address | IPv6Address) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    try:
        filter_host(str(address), 443, allow_loopback=False)
    except InvalidIPAddress:
        with pytest.raises(TargetRefused):
            targets.check(f"https://{host}/", ())


@given(st.text(max_size=40))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com{text}"):
        try:
            target = targets.parse(url)
        except TargetRefused:
            continue
        assert target.path.startswith("/")
        assert target.host == target.host.lower()
        assert target.path.isascii()
