"""Images of a request by their address: data: URIs, and files and hosts that the operator allowed.

An http: address is opened only if its host is allowed. The host is resolved once, every address it has must be public, and
the connection goes to the address that was checked. Redirects are not followed. So a request cannot reach other machines of
the network. A host that is allowed by its IP address may be private: the operator named that machine.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ipaddress
import re
import socket
import ssl
import stat
import time
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from arr_coc.errors import ImageError
from arr_coc.hosting import UploadedImage, open_upload
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.settings import AddressPolicy

DATA = re.compile(r"data:(?P<kind>[\w.+/-]*)(?:;[\w.+=-]+)*;base64,")
CHUNK = 1 << 16
SHOWN = 80  # characters of an address in an error


def open_image(address: str, number: int, limits: EndpointLimits, policy: AddressPolicy) -> UploadedImage:
    """The image at an address. `number` names it in errors; its size is checked before any pixel is decoded."""
    name = f"image {number}"
    try:
        data = _read(address, name, limits, policy)
    except OSError as error:  # files and sockets
        raise ImageError(f"{name} cannot be read from {address[:SHOWN]!r} ({error.strerror or error})") from None
    if not data:
        raise ImageError(f"{name} is empty (0 bytes)")
    return open_upload(data, name, limits.megapixels)


def _read(address: str, name: str, limits: EndpointLimits, policy: AddressPolicy) -> bytes:
    scheme = address[:8].partition(":")[0].lower()
    if scheme == "data":
        return _from_data(address, name, limits)
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError as error:
        raise ImageError(f"expected an address of {name}, got {address[:SHOWN]!r} ({error})") from None
    if scheme == "file" and policy.folders:
        return _from_folder(url, name, limits, policy)
    if scheme in ("http", "https") and policy.hosts:
        return _from_host(url, port, name, limits, policy)
    raise ImageError(
        f"expected {name} as data:image/png;base64,... (or an address that the server allows), got {address[:SHOWN]!r}"
    )


def _from_data(address: str, name: str, limits: EndpointLimits) -> bytes:
    match = DATA.match(address[:256])
    if match is None:
        raise ImageError(f"expected {name} as data:image/png;base64,..., got {address[:SHOWN]!r}")
    if (len(address) - match.end()) * 3 / 4 > limits.megabytes * 1e6 + 3:
        raise _too_large(name, limits)
    try:
        return base64.b64decode(address[match.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"expected base64 after the comma of {name}, got other characters ({error})") from None


def _from_folder(url: SplitResult, name: str, limits: EndpointLimits, policy: AddressPolicy) -> bytes:
    wanted = f"expected {name} as a file below an allowed folder, got {url.geturl()[:SHOWN]!r}"
    if url.netloc not in ("", "localhost"):
        raise ImageError(wanted)
    try:
        path = Path(unquote(url.path)).resolve(strict=True)  # links are followed before the check
        found = path.stat()
    except (OSError, ValueError, RuntimeError):  # missing, a NUL in the name, a loop of links
        raise ImageError(wanted) from None
    # One sentence for all cases: a client must not learn which files exist elsewhere.
    if not any(path.is_relative_to(folder.resolve()) for folder in policy.folders) or not stat.S_ISREG(found.st_mode):
        raise ImageError(wanted)
    if found.st_size > limits.megabytes * 1e6:
        raise _too_large(name, limits)
    return path.read_bytes()


def _from_host(url: SplitResult, port: int | None, name: str, limits: EndpointLimits, policy: AddressPolicy) -> bytes:
    host = (url.hostname or "").lower()
    secure = url.scheme.lower() == "https"
    usual = 443 if secure else 80
    bracketed = f"[{host}]" if ":" in host else host
    # An entry without a port allows the usual ports only.
    spelled = {f"{bracketed}:{port or usual}"} | ({bracketed} if port in (None, usual) else set())
    if url.username is not None or not spelled & {entry.lower() for entry in policy.hosts}:
        raise ImageError(f"expected {name} from a host that the server allows, got {bracketed[:SHOWN]!r}")
    checked = _resolve(host, port or usual, name)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    deadline = time.monotonic() + limits.seconds
    connection = _PinnedConnection(host, port or usual, checked, secure, limits.seconds)
    try:
        connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "arr-coc"})
        response = connection.getresponse()
        if response.status != 200:
            hint = ", and redirects are not followed" if 300 <= response.status < 400 else ""
            raise ImageError(f"expected {name} from {bracketed!r}, got status {response.status}{hint}")
        data = bytearray()
        while chunk := response.read1(CHUNK):
            data += chunk
            if len(data) > limits.megabytes * 1e6:
                raise _too_large(name, limits)
            if time.monotonic() > deadline:
                raise ImageError(f"expected {name} from {bracketed!r} within {limits.seconds:g} seconds")
        return bytes(data)
    except (http.client.HTTPException, UnicodeError) as error:
        raise ImageError(f"{name} cannot be read from {bracketed!r} ({type(error).__name__})") from None
    finally:
        connection.close()


def _resolve(host: str, port: int, name: str) -> str:
    """The address to connect to; every address of a named host must be public."""
    try:
        return str(ipaddress.ip_address(host))  # the operator allowed exactly this address
    except ValueError:
        pass
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise ImageError(f"expected {name} from a host with an address, and {host!r} has none") from None
    for one in found:
        if not is_public(one):
            raise ImageError(
                f"expected {name} from a public address, and {host!r} is at {one}: allow that address itself"
            )
    return min(found, key=lambda one: (":" in one, one))  # IPv4 first


def is_public(address: str) -> bool:
    """Whether an IP address is on the public internet; IPv4 addresses inside IPv6 ones count as themselves.

    >>> is_public("93.184.216.34"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1"), is_public("64:ff9b::a00:1")
    (True, False, False, False)
    """
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        inner = known.ipv4_mapped or known.sixtofour or (known.teredo[1] if known.teredo else None)
        if inner is None and known in ipaddress.ip_network("64:ff9b::/96"):  # NAT64
            inner = ipaddress.IPv4Address(int(known) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return known.is_global and not known.is_multicast


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to an address that was checked. The certificate is checked against the host's name."""

    def __init__(self, host: str, port: int, address: str, secure: bool, seconds: float) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address, self._secure, self._seconds = address, secure, seconds

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self._seconds)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _too_large(name: str, limits: EndpointLimits) -> ImageError:
    return ImageError(
        f"expected an image of at most {limits.megabytes:g} MB, got {name} with more: send a smaller file"
    )
