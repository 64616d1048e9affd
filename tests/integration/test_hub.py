"""Models from a hub: against a local server that speaks the hub's HTTP protocol, since none can be reached here."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from verifiable.errors import EngineError, PolicyError, VerificationError
from verifiable.llama import hub

pytest.importorskip("huggingface_hub")
DATA = b"GGUF" + bytes(range(256)) * 4096


class Hub(BaseHTTPRequestHandler):
    """/{owner}/{repository}/resolve/{revision}/{file}, with the headers that the client reads."""

    sent = DATA

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        if not self.path.startswith("/acme/tiny/resolve/") or not self.path.endswith(("/tiny.gguf", "/plain.gguf")):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        digest = hashlib.sha256(DATA).hexdigest()
        self.send_response(200)
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("ETag", f'"{digest}"' if self.path.endswith("tiny.gguf") else '"' + "e" * 40 + '"')
        self.send_header("Content-Length", str(len(self.sent)))
        self.end_headers()
        if body:
            self.wfile.write(self.sent)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_and_its_hash_compared(endpoint: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = hub.fetch("acme/tiny", "tiny.gguf", endpoint=endpoint, cache=tmp_path, progress=lambda *at: seen.append(at))
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    again = hub.fetch("acme/tiny", "tiny.gguf", endpoint=endpoint, cache=tmp_path)
    assert again == path


def test_other_bytes_than_published_are_refused(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "sent", DATA[:-1] + b"\xff" if DATA[-1:] != b"\xff" else DATA[:-1] + b"\0")
    with pytest.raises(VerificationError) as caught:
        hub.fetch("acme/tiny", "tiny.gguf", endpoint=endpoint, cache=tmp_path)
    assert caught.value.code == "model-differs"


def test_what_is_not_there_or_has_no_hash(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        hub.fetch("acme/tiny", "other.gguf", endpoint=endpoint, cache=tmp_path)
    with pytest.raises(PolicyError):
        hub.fetch("acme/tiny", "plain.gguf", endpoint=endpoint, cache=tmp_path)
    with pytest.raises(EngineError):
        hub.fetch("acme/tiny", "tiny.gguf", endpoint="http://127.0.0.1:9", cache=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:acme/tiny/tiny.gguf", ("acme/tiny", "tiny.gguf")),
        ("hf:acme/tiny/q4/tiny-00001-of-00002.gguf", ("acme/tiny", "q4/tiny-00001-of-00002.gguf")),
        ("models/tiny.gguf", None),
        ("hf:acme/tiny/../../etc/passwd.gguf", None),
        ("hf:tiny.gguf", None),
    ],
)
def test_names(text: str, expected: tuple[str, str] | None) -> None:
    assert hub.parse_name(text) == expected
