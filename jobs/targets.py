"""Decides where a webhook may go: one reading of the URL and one rule for addresses, for submit and connect.

A callback's URL is hostile input (SSRF). `check` refuses it at submit; the sender applies `parse` and
`permit` again when it connects, to the very addresses it connects to, since a name can change in between.
Sources of the rule: IANA's special-purpose address registries, and the WHATWG URL standard for hosts that
end in a number.
"""

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

MAX_URL_CHARS = 2_048
LOOKUP_TIMEOUT_S = 2.0  # A name server that hangs must not hold up a submit for longer.
LOOKUPS_AT_ONCE = 8

Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], list[str]]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_OPEN_PORT = 1_024  # Below it only the two defaults: nobody serves webhooks beside SMTP or SSH.
_URL_CHARS = re.compile(r"[!$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~#-]+")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME_CHARS = 253
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # All else in IPv6 is special: mapped, NAT64, local, multicast.
# What Python 3.11 calls global, though it is special or carries an IPv4 address inside.
_ALSO_SPECIAL: tuple[Network, ...] = tuple(
    ip_network(one) for one in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
)


class TargetRefused(ValueError):
    """A webhook may not go there; `reason` says why, and what would be accepted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Target:
    """A URL as it will be requested. `path` includes the query; an IPv6 `host` has no brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check(url: str, allow: Sequence[str], resolve: Resolve | None = None) -> None:
    """Refuse a URL at submit; raises `TargetRefused`. Blocks for `LOOKUP_TIMEOUT_S` at most.

    `allow` holds the operator's networks (CIDR). A name that doesn't resolve now is accepted where it may
    be public and goes over https: the receiver's name server being away for a moment should refuse no job,
    and the sender checks again.
    """
    target = parse(url)
    try:
        addresses = (resolve or _resolve_briefly)(target.host, target.port)
    except OSError:
        if target.scheme == "http" or _is_private_name(target.host):
            raise TargetRefused(f"the host {target.host} does not resolve") from None
        return
    permit(target, addresses, allow)


def parse(url: str) -> Target:
    """Read a URL strictly, without any I/O; raises `TargetRefused`."""
    if len(url) > MAX_URL_CHARS:
        raise TargetRefused(f"the URL is longer than {MAX_URL_CHARS:,} characters")
    if not _URL_CHARS.fullmatch(url):
        raise TargetRefused("a URL is plain ASCII: percent-encode the path, write the host in its xn-- form")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _DEFAULT_PORTS:
        raise TargetRefused("the URL must begin with https:// (or http:// inside an allowed network)")
    if "#" in rest:
        raise TargetRefused("the URL has a fragment, which is never sent")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    host, port = _host_and_port(authority.lower(), _DEFAULT_PORTS[scheme])
    return Target(scheme, host, port, path if path.startswith("/") else f"/{path}")


def permit(target: Target, addresses: Sequence[str], allow: Sequence[str]) -> list[str]:
    """The addresses of a target that may be connected to; raises `TargetRefused`.

    Either all of them lie in networks of the operator, or all are public and the scheme is https. A name
    with both kinds is refused whole: that is how rebinding looks.
    """
    if not addresses:
        raise TargetRefused(f"the host {target.host} has no address")
    opened = networks(tuple(allow))
    found = [ip_address(address) for address in addresses]
    if all(any(address in network for network in opened) for address in found):
        return list(addresses)
    for address in found:
        if not _is_public(address):
            raise TargetRefused(f"{address} is not a public address, and not all of the host is allowed")
    if target.scheme != "https":
        raise TargetRefused("plain http is sent only inside an allowed network; use https")
    return list(addresses)


def receiver_of(url: str) -> str:
    """Whose a URL is that was checked: what the bound on deliveries at once counts by."""
    return urlsplit(url).netloc.lower()


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the system's order of preference. Raises `OSError`; may block for long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


@cache
def networks(allow: tuple[str, ...]) -> tuple[Network, ...]:
    """The operator's networks. Raises `ValueError` where one is no CIDR."""
    return tuple(ip_network(one) for one in allow)


def _host_and_port(authority: str, default_port: int) -> tuple[str, int]:
    if "@" in authority:
        raise TargetRefused("the URL carries a user or password")
    found = _AUTHORITY.fullmatch(authority)
    if not found:
        raise TargetRefused("the URL has no valid host")
    port = int(found["port"] or default_port)
    if port not in _DEFAULT_PORTS.values() and not _FIRST_OPEN_PORT <= port <= 65_535:
        raise TargetRefused(f"port {port} is neither 80, 443 nor from {_FIRST_OPEN_PORT:,} to 65,535")
    return _literal(found["v6"]) if found["v6"] else _host(found["name"]), port


def _host(name: str) -> str:
    if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
        return _literal(name)
    if len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise TargetRefused("the host is no valid name (a trailing dot is refused too)")
    return name


def _literal(written: str) -> str:
    # Only the plain form: resolvers also read octal, hexadecimal, short and whole-number spellings.
    try:
        return str(ip_address(written))
    except ValueError:
        raise TargetRefused("the host is not an IP address in its plain form") from None


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    special = any(address in network for network in _ALSO_SPECIAL)
    return address.is_global and not address.is_multicast and not special


def _is_private_name(host: str) -> bool:
    return "." not in host or host.endswith(_PRIVATE_SUFFIXES)


def _resolve_briefly(host: str, port: int) -> list[str]:
    # getaddrinfo knows no time limit. A lookup that hangs keeps its thread; when all threads hang, names
    # count as unresolved until one returns.
    lookup = _lookups().submit(resolve, host, port)
    try:
        return lookup.result(LOOKUP_TIMEOUT_S)
    finally:
        lookup.cancel()


@cache
def _lookups() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="webhook-lookup")
