"""Models from a hub: against a local server that speaks the hub's HTTP protocol, since none can be reached here."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine import hub
from tests.gguf_files import Entry, File, Tensor
from verifiable.errors import EngineError, PolicyError, VerificationError
from verifiable.llama.gguf.parts import inspect_parts
from verifiable.llama.gguf.types import I32, STRING, U16, U32

pytest.importorskip("huggingface_hub")
DATA = b"GGUF" + bytes(range(256)) * 4096
COMMIT = "c" * 40


@dataclass
class Shelf:
    """What the stand-in has and how it behaves. `asked` are the byte positions from which each file was wanted."""

    files: dict[str, bytes]
    url: str = ""
    unhashed: set[str] = field(default_factory=set)
    sends: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    pace: float = 0.0
    asked: list[tuple[str, int]] = field(default_factory=list)


def handler(shelf: Shelf) -> type[BaseHTTPRequestHandler]:
    class Hub(BaseHTTPRequestHandler):
        """/OWNER/REPOSITORY/resolve/REVISION/FILE and /api/models/…, with the headers that the client reads."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            if self.path.startswith("/api/models/acme/tiny"):
                names = [{"rfilename": name} for name in [*shelf.files, "README.md"]]
                self.reply(200, json.dumps({"id": "acme/tiny", "sha": COMMIT, "siblings": names}).encode())
                return
            owner, _, name = self.path.partition("/resolve/")
            name = name.partition("/")[2]
            if owner != "/acme/tiny":
                self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
            elif name not in shelf.files:
                self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif body and name in shelf.status:
                self.reply(shelf.status[name], b"")
            else:
                self.file(name, body)

        def file(self, name: str, body: bool) -> None:
            data = shelf.sends.get(name, shelf.files[name])
            digest = "e" * 40 if name in shelf.unhashed else hashlib.sha256(shelf.files[name]).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
            if not body:
                self.reply(200, shelf.files[name], headers, send=False)
                return
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            shelf.asked.append((name, start))
            status = 200
            if start and shelf.ranges:
                status, headers["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
                data = data[start:]
            cuts = shelf.cut.get(name, [])
            self.reply(status, data, headers, most=cuts.pop(0) if cuts else None)

        def reply(
            self,
            status: int,
            data: bytes,
            headers: dict[str, str] | None = None,
            send: bool = True,
            most: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if not send:
                return
            for at in range(0, len(data) if most is None else most, 1 << 16):
                self.wfile.write(data[at : min(at + (1 << 16), most or len(data))])
                time.sleep(shelf.pace)
            if most is not None:
                self.wfile.flush()
                self.connection.shutdown(2)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    return Hub


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setattr(hub, "PAUSE", 0.0)
    found = Shelf({"tiny.gguf": DATA, "plain.gguf": DATA}, unhashed={"plain.gguf"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(found))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def part(number: int, count: int) -> bytes:
    """One part of a model that is split."""
    entries = [Entry("split.no", U16, number), Entry("split.count", U16, count), Entry("split.tensors.count", I32, 3)]
    if number == 0:
        entries += [Entry("general.architecture", STRING, "llama"), Entry("llama.block_count", U32, 1)]
    return File(entries, [Tensor(f"t{number}.weight", (1 << 14, 4), 0, bytes([number]) * (1 << 18))]).build()


FIRST = "q4/big-00001-of-00003.gguf"
PARTS = {f"q4/big-{number + 1:05}-of-00003.gguf": part(number, 3) for number in range(3)}


def fetch(shelf: Shelf, file: str, cache: Path, **more: Any) -> Path:
    return hub.fetch("acme/tiny", file, endpoint=shelf.url, cache=cache, **more)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_and_its_hash_compared(shelf: Shelf, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch(shelf, "tiny.gguf", tmp_path, progress=lambda *at: seen.append(at))
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert fetch(shelf, "tiny.gguf", tmp_path) == path
    assert shelf.asked == [("tiny.gguf", 0)]  # the second time nothing is sent
    assert leftovers(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("wrong", [DATA[:-1] + b"\x00", DATA + b"\x00", b"\x00" + DATA[1:]])
def test_other_bytes_than_published_are_refused_and_not_kept(shelf: Shelf, tmp_path: Path, wrong: bytes) -> None:
    shelf.sends["tiny.gguf"] = wrong
    with pytest.raises(VerificationError) as caught:
        fetch(shelf, "tiny.gguf", tmp_path)
    assert caught.value.code == "model-differs"
    assert leftovers(tmp_path) == []
    del shelf.sends["tiny.gguf"]
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == DATA


def test_a_kept_file_that_was_changed_is_fetched_anew(shelf: Shelf, tmp_path: Path) -> None:
    path = fetch(shelf, "tiny.gguf", tmp_path)
    for data in (DATA[:-1] + b"\x00", DATA[:1000], b""):
        path.write_bytes(data)
        assert fetch(shelf, "tiny.gguf", tmp_path) == path
        assert path.read_bytes() == DATA
    shelf.files["tiny.gguf"] = DATA * 2  # the hub has a new version
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == DATA * 2


def test_all_parts_come_with_the_first(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= PARTS
    seen: list[tuple[int, int]] = []
    path = fetch(shelf, FIRST, tmp_path, progress=lambda *at: seen.append(at))
    assert len(inspect_parts(path)) == 3
    assert leftovers(tmp_path) == sorted(name.partition("/")[2] for name in PARTS)
    total = sum(map(len, PARTS.values()))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_is_missing_is_noticed_before_the_first_byte(shelf: Shelf, tmp_path: Path, lost: int) -> None:
    gone = list(PARTS)[lost]
    shelf.files |= {name: data for name, data in PARTS.items() if name != gone}
    with pytest.raises(PolicyError, match="lacks 1 of the 3 parts") as caught:
        fetch(shelf, FIRST, tmp_path)
    assert gone in str(caught.value.found)
    assert shelf.asked == []


def test_a_part_that_is_another_is_refused_and_the_others_stay(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= PARTS
    second = list(PARTS)[1]
    shelf.sends[second] = PARTS[second][:-1] + b"\xff"
    with pytest.raises(VerificationError, match="not the one that the hub publishes") as caught:
        fetch(shelf, FIRST, tmp_path)
    assert second in (caught.value.hint or "")
    assert leftovers(tmp_path) == ["big-00001-of-00003.gguf"]
    shelf.sends.clear()
    assert len(inspect_parts(fetch(shelf, FIRST, tmp_path))) == 3
    assert [name for name, _ in shelf.asked].count(FIRST) == 1


def test_another_part_than_the_first_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= PARTS
    for file in (FIRST.replace("00001", "00002"), FIRST.replace("00003", "00000"), FIRST.replace("00003", "99999")):
        with pytest.raises(PolicyError, match="first part"):
            fetch(shelf, file, tmp_path)
    assert hub.part_names(FIRST) == list(PARTS)
    assert hub.part_names("tiny-1-of-2.gguf") == ["tiny-1-of-2.gguf"]


def test_a_connection_that_breaks_is_made_anew_where_it_was(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cut["tiny.gguf"] = [300_000, 400_000, 0]
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == DATA
    starts = [start for _, start in shelf.asked]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert 0 < starts[1] <= 300_000
    assert starts[-1] == starts[-2] > starts[1]


def test_a_download_goes_on_after_the_hub_was_away(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= PARTS
    second = list(PARTS)[1]
    shelf.cut[second] = [200_000, *[0] * 20]
    with pytest.raises(EngineError, match="broke off") as caught:
        fetch(shelf, FIRST, tmp_path)
    assert "goes on from there" in (caught.value.hint or "")
    kept = leftovers(tmp_path)
    assert [name for name in kept if name.endswith(".gguf")] == ["big-00001-of-00003.gguf"]
    assert len(kept) == 2
    shelf.cut.clear()
    shelf.asked.clear()
    assert len(inspect_parts(fetch(shelf, FIRST, tmp_path))) == 3
    assert FIRST not in [name for name, _ in shelf.asked]
    assert 0 < next(start for name, start in shelf.asked if name == second) <= 200_000
    assert leftovers(tmp_path) == sorted(name.partition("/")[2] for name in PARTS)


FETCH = """
import sys
from pathlib import Path
from engine import hub
hub.fetch("acme/tiny", "tiny.gguf", endpoint=sys.argv[1], cache=Path(sys.argv[2]))
"""


def test_a_download_goes_on_after_its_process_was_killed(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["tiny.gguf"] = DATA * 8
    shelf.pace = 0.02
    process = subprocess.Popen([sys.executable, "-c", FETCH, shelf.url, str(tmp_path)])
    try:
        until = time.monotonic() + 60
        while not any(path.stat().st_size > 1 << 20 for path in tmp_path.rglob("*.part")):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert not list(tmp_path.rglob("tiny.gguf"))
    shelf.pace = 0.0
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == DATA * 8
    assert shelf.asked[-1][1] >= 1 << 20


def test_a_server_that_can_only_send_all_of_it(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cut["tiny.gguf"], shelf.ranges = [500_000], False
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == DATA


def test_what_was_left_behind_of_another_version_is_not_gone_on_with(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cut["tiny.gguf"] = [300_000, *[0] * 20]
    with pytest.raises(EngineError):
        fetch(shelf, "tiny.gguf", tmp_path)
    shelf.cut.clear()
    shelf.asked.clear()
    shelf.files["tiny.gguf"] = bytes(len(DATA))
    assert fetch(shelf, "tiny.gguf", tmp_path).read_bytes() == bytes(len(DATA))
    assert shelf.asked == [("tiny.gguf", 0)]


def test_two_processes_do_not_write_one_file(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cut["tiny.gguf"] = [300_000, *[0] * 20]
    with pytest.raises(EngineError):
        fetch(shelf, "tiny.gguf", tmp_path)
    (scratch,) = tmp_path.rglob("*.part")
    with scratch.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match="another process"):
            fetch(shelf, "tiny.gguf", tmp_path)


def test_what_is_not_there_or_has_no_hash(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files |= PARTS
    with pytest.raises(PolicyError, match="no such file") as caught:
        fetch(shelf, "other.gguf", tmp_path)
    assert caught.value.hint == f"It has plain.gguf, {FIRST}, tiny.gguf."
    with pytest.raises(PolicyError, match="no SHA-256"):
        fetch(shelf, "plain.gguf", tmp_path)
    with pytest.raises(PolicyError, match="no such repository"):
        hub.fetch("acme/none", "tiny.gguf", endpoint=shelf.url, cache=tmp_path)
    with pytest.raises(EngineError, match="can't be reached"):
        hub.fetch("acme/tiny", "tiny.gguf", endpoint="http://127.0.0.1:9", cache=tmp_path)
    shelf.status["tiny.gguf"] = 503
    with pytest.raises(EngineError, match="does not give") as refused:
        fetch(shelf, "tiny.gguf", tmp_path)
    assert "503" in str(refused.value.found)


def test_there_is_no_room(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(EngineError, match="no room"):
        fetch(shelf, "tiny.gguf", tmp_path)
    assert shelf.asked == []


def test_a_folder_that_cant_be_written(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "acme").write_bytes(b"a file in its way")
    with pytest.raises(EngineError, match="cannot"):
        fetch(shelf, "tiny.gguf", tmp_path)


def test_the_command_says_what_the_repository_has(shelf: Shelf, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "verifiable", "serve", "--model", "hf:acme/tiny/q8.gguf", "--data", str(tmp_path)],
        env={**os.environ, "HF_ENDPOINT": shelf.url, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "no q8.gguf in acme/tiny at main" in done.stderr
    assert "It has plain.gguf, tiny.gguf" in done.stderr


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
