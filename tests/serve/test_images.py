"""Images by address: what is opened, and that nothing else can be reached."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arr_coc.errors import ArrCocError, ImageError
from arr_coc.serve import images
from arr_coc.serve.images import is_public, open_image
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.settings import AddressPolicy
from tests.serve.conftest import data_uri, receipt

LIMITS = EndpointLimits(megabytes=0.1, megapixels=1, seconds=1)
NOTHING = AddressPolicy()


def bomb() -> str:
    """A small file of 100 megapixels."""
    return data_uri(Image.new("1", (10_000, 10_000)))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "expected image 1 as data:image"),
        ("receipt.png", "expected image 1 as data:image"),
        ("/etc/passwd", "expected image 1 as data:image"),
        ("file:///etc/passwd", "expected image 1 as data:image"),
        ("http://127.0.0.1/a.png", "expected image 1 as data:image"),
        ("https://example.org/a.png", "expected image 1 as data:image"),
        ("ftp://example.org/a.png", "expected image 1 as data:image"),
        ("http://[::1", "Invalid IPv6"),
        ("data:", "expected image 1 as data:image"),
        ("data:image/png,abc", "expected image 1 as data:image"),
        ("data:image/png;base64,", "image 1 is empty"),
        ("data:image/png;base64,%%%", "expected base64"),
        ("data:image/png;base64,QUJD\n", "expected base64"),
        ("data:image/png;base64,é", "expected base64"),
        ("data:image/png;base64,QUJDRA==", "is not an image"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "is not an image"),
        ("data:image/png;base64," + "A" * 200_000, "at most 0.1 MB"),
        (data_uri(receipt())[:-400], "expected base64|corrupt or truncated"),
        (bomb(), "at most 1 megapixels, got image 1 with"),
    ],
)
def test_bad_addresses_are_one_sentence(address: str, message: str) -> None:
    with pytest.raises(ImageError, match=message) as refused:
        open_image(address, 1, LIMITS, NOTHING).decode()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg;charset=utf-8", ""])
def test_the_content_decides_and_not_the_declared_kind(kind: str) -> None:
    address = data_uri(receipt()).replace("image/png", kind, 1)
    opened = open_image(address, 1, LIMITS, NOTHING)
    assert (opened.width, opened.height) == (420, 280)
    assert opened.decode().tobytes() == receipt().tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inside" / "deep").mkdir(parents=True)
    receipt().save(tmp_path / "inside" / "deep" / "a b.png")
    receipt().save(tmp_path / "outside.png")
    (tmp_path / "inside" / "link.png").symlink_to(tmp_path / "outside.png")
    (tmp_path / "inside" / "loop.png").symlink_to("loop.png")
    (tmp_path / "inside" / "large.png").write_bytes(b"x" * 200_000)
    return tmp_path


def test_files_below_an_allowed_folder_are_opened(folder: Path) -> None:
    policy = AddressPolicy(folders=(folder / "inside",))
    for address in (f"file://{folder}/inside/deep/a%20b.png", f"file://localhost{folder}/inside/deep/../deep/a b.png"):
        assert open_image(address, 1, LIMITS, policy).width == 420


@pytest.mark.parametrize(
    "address",
    [
        "file://FOLDER/outside.png", "file://FOLDER/inside/../outside.png", "file://FOLDER/inside/%2e%2e/outside.png",
        "file://FOLDER/inside/link.png", "file://FOLDER/inside/loop.png", "file://FOLDER/inside", "file://FOLDER/inside/no.png",
        "file:///etc/passwd", "file:///dev/zero", "file://host/FOLDER/inside/deep/a b.png", "file:deep/a b.png", "file://FOLDER/%00",
    ],
)  # fmt: skip
def test_nothing_else_of_the_disk_is_reached(folder: Path, address: str) -> None:
    with pytest.raises(ImageError, match="expected image 1 as a file below an allowed folder"):
        open_image(address.replace("FOLDER", str(folder)), 1, LIMITS, AddressPolicy(folders=(folder / "inside",)))


def test_a_large_file_is_not_read(folder: Path) -> None:
    with pytest.raises(ImageError, match=r"at most 0\.1 MB"):
        open_image(f"file://{folder}/inside/large.png", 1, LIMITS, AddressPolicy(folders=(folder,)))


class Host(BaseHTTPRequestHandler):
    """Answers by path: an image, a redirect to it, too much, or too slowly."""

    def do_GET(self) -> None:
        self.send_response({"/moved": 302, "/missing": 404}.get(self.path, 200))
        self.send_header("Location", "/a.png")
        self.end_headers()
        if self.path == "/a.png":
            buffer = io.BytesIO()
            receipt().save(buffer, "PNG")
            self.wfile.write(buffer.getvalue())
        try:
            while self.path == "/endless":
                self.wfile.write(b"x" * 65536)
            while self.path == "/slow" and not self.server.ended.wait(0.1):  # type: ignore[attr-defined]
                self.wfile.write(b"x")
        except OSError:  # the client has had enough
            pass

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        server.ended = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.ended.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_an_allowed_host_is_asked(port: int) -> None:
    policy = AddressPolicy(hosts=(f"127.0.0.1:{port}",))
    assert open_image(f"http://127.0.0.1:{port}/a.png", 1, LIMITS, policy).width == 420


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/moved", "status 302, and redirects are not followed"),
        ("/missing", "status 404"),
        ("/endless", "at most 0.1 MB"),
        ("/slow", "within 1 seconds"),
        ("/a\r\nHost: other", "cannot be read|is empty|status"),
    ],
)
def test_a_host_that_misbehaves_is_one_sentence(port: int, path: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(f"http://127.0.0.1:{port}{path}", 1, LIMITS, AddressPolicy(hosts=(f"127.0.0.1:{port}",)))


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:PORT@other.example/a.png", "http://user@127.0.0.1:PORT/a.png", "http://127.0.0.1/a.png",
        "http://127.0.0.2:PORT/a.png", "http://2130706433:PORT/a.png", "http://0x7f.1:PORT/a.png", "https://other.example/",
    ],
)  # fmt: skip
def test_no_other_host_is_asked(port: int, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.socket, "create_connection", lambda *_: pytest.fail("it connected"))
    with pytest.raises(ImageError, match="expected image 1 from a host that the server allows"):
        open_image(address.replace("PORT", str(port)), 1, LIMITS, AddressPolicy(hosts=(f"127.0.0.1:{port}",)))


def test_a_name_must_have_public_addresses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the DNS server of that name could point at a machine of this network."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 80)) for one in ("93.184.216.34", "169.254.169.254")]
    monkeypatch.setattr(images.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(images.socket, "create_connection", lambda *_: pytest.fail("it connected"))
    with pytest.raises(ImageError, match=r"is at 169\.254\.169\.254"):
        open_image("http://pictures.example/a.png", 1, LIMITS, AddressPolicy(hosts=("pictures.example",)))


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    connected: list[Any] = []

    def connect(address: Any, timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(images.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(images.socket, "create_connection", connect)
    with pytest.raises(ImageError, match="Connection refused"):
        open_image("http://pictures.example/a.png", 1, LIMITS, AddressPolicy(hosts=("Pictures.example",)))
    assert connected == [("93.184.216.34", 80)]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False), ("192.168.0.1", False),
        ("172.16.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
        ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False), ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False), ("::", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("policy", "message"),
    [({"folders": (Path("/nowhere/at/all"),)}, "there is no folder"), ({"hosts": ("http://a",)}, "name or name:port")],
)
def test_a_bad_policy_raises(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ArrCocError, match=message):
        AddressPolicy(**policy)
