"""A simulated provider: the proof API of `spec/` over real HTTP and made-up sessions, honest until told to cheat.

What it serves is signed like a real provider's. A test makes sessions, serves them, and audits the address:

    sessions = [honest(1), honest(2, other_model)]  # the second is computed by another model than is promised
    provider = Provider(sessions, log=Log([made.head() for made in sessions]))
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts, draw = audit_provider(auditor, client, 10, seed)

To cheat, change what it holds or how it answers:

    provider.recordings.popitem()                      # a session is no longer listed
    provider.withheld = {sessions[0].session.hex()}    # nor shown, but still listed
    provider.earlier = {(session, size): recording}    # as it was when it had so many leaves
    provider.change = lambda path, body: body[:-1]     # any answer, by its path
    provider.log.entries[0] = b"rewritten"             # the log forgets what it published
    provider.log.consistency = lambda old, new: b"{}"  # or does not prove that it grew
    provider.continues = lambda session, old, new: None  # nor that a session did

Sessions with lies in their records are made with `tests.sessions.Recording`. `serve` takes any function that answers
a request, for servers that break HTTP itself. `provider.asked` has the path of every request, in order.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.made_up_model import PROMPT
from tests.sessions import PROVIDER, Recording, Row, ask, made_up, manifest
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import KeysFile
from verifiable.sampling.logits import Entries
from verifiable.session.evidence import Kind
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash, prefix_path
from verifiable.tlog.note import sign_note
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.tiles import Tile, encode_bundle
from verifiable.wire.keys import PrivateKey

KEY = "auditor-secret"
LOG = PrivateKey.generate("acme/log", b"l" * 32)
LOGGED = manifest(log=LOG.public)
"""The manifest of a provider that has a log."""
PAGE = 3
"""Sessions on a page of the list."""

Answer = Callable[[BaseHTTPRequestHandler], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that has left is no news
            super().handle_error(request, client_address)


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    """A server that answers every GET and POST with `answer`; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(OSError):  # the client has left, as it should
                answer(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer a request; `Content_Type="…"` is a header."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def honest(number: int, row: Row = made_up, turns: int = 1, stated: Manifest | None = None, **body: Any) -> Recording:
    """A closed session of so many turns; `row` is what the provider's model really computes."""
    made = Recording(manifest=stated or manifest(), session=bytes([number]) * 16, capability=bytes([number]) * 32)
    for _ in range(turns):
        made.turn(ask(max_tokens=5, **body), PROMPT, row)
    made.close()
    return made


def other_model(ids: Sequence[int]) -> Entries:
    """The rows of a model that is not the promised one."""
    entries = made_up(ids)
    return Entries(entries.ids, entries.logits + entries.logits.dtype.type(0.5))


def seed() -> bytes:
    """A challenge's seed that is the same in every run."""
    return b"s" * 32


class Log:
    """A transparency log over any entries. A checkpoint has the first `size` of them, or all; `claimed` more is a lie.

    `proves` gives the place of a session's head in the log, by the session's id and the head's size; `consistency`
    the body of a consistency proof between two sizes.
    """

    def __init__(self, entries: Sequence[bytes], size: int | None = None) -> None:
        self.entries = list(entries)
        self.size = size
        self.claimed = 0
        self.keys = [LOG]
        self.proves: Callable[[str, int], int | None] | None = None
        self.consistency: Callable[[int, int], bytes] = self.proof

    def tree(self, size: int | None = None) -> Tree:
        return Tree.from_leaves(map(leaf_hash, self.entries[: self.size if size is None else size]))

    def note(self) -> bytes:
        """The signed checkpoint."""
        tree = self.tree()
        checkpoint = Checkpoint("acme/log", tree.size + self.claimed, tree.root())
        return sign_note(checkpoint.text(), *self.keys)

    def proof(self, old: int, new: int) -> bytes:
        path = self.tree(new).consistency_proof(old, new)
        return json.dumps({"path": [item.hex() for item in path]}).encode()

    def bundle(self, path: str) -> bytes:
        """The entries under a path such as `tile/entries/000.p/5`."""
        tile = Tile.parse(path)
        first = tile.index * 256
        return encode_bundle(self.entries[first : first + tile.width])

    def tile(self, path: str) -> bytes:
        """The hashes under a path such as `tile/0/000.p/5`."""
        tile, tree = Tile.parse(path), self.tree()
        first = tile.index * 256
        return b"".join(tree.node(8 * tile.level, at) for at in range(first, first + tile.width))

    def shown(self, indices: Sequence[int], size: int) -> bytes:
        """Entries with their multiproof."""
        entries = [base64.urlsafe_b64encode(self.entries[at]).decode().rstrip("=") for at in indices]
        path = [item.hex() for item in self.tree(size - self.claimed).multiproof(indices)]
        return json.dumps({"entries": entries, "path": path}).encode()

    def inclusion(self, at: int) -> bytes:
        tree = self.tree()
        return TlogProof(at, tuple(tree.inclusion_proof(at, tree.size)), self.note()).format()


class Provider:
    """Answers as the proof API of `spec/` does. See the top of this file."""

    def __init__(self, recordings: Sequence[Recording], log: Log | None = None) -> None:
        self.recordings = {made.session.hex(): made for made in recordings}
        self.log = log or Log([])
        self.logs = log is not None
        self.statements: Sequence[bytes] | None = None
        """Its statements on keys, where it serves any."""
        self.stated: bytes | None = None
        """The manifest in force, signed, where it is another than its sessions'."""
        self.asked: list[str] = []
        self.withheld: set[str] = set()
        self.earlier: dict[tuple[str, int], Recording] = {}
        self.continues: Callable[[str, int, int], bytes | None] = self.continued
        self.change: Callable[[str, bytes], bytes] = lambda path, body: body

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        parts = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = self._log(parts.path, query) if self.logs else None
        if found is None:
            found = self._sessions(parts.path, query, handler)
        if found == b"":
            return send(handler, b'{"error":{"message":"no finished turn"}}', 400)
        if found is None:
            return send(handler, b'{"error":{"message":"unknown"}}', 404)
        return send(handler, self.change(parts.path, found))

    def _log(self, path: str, query: dict[str, str]) -> bytes | None:
        match path.split("/")[1:]:
            case ["v1", "manifest"]:
                return self.stated or LOGGED.sign(PROVIDER)
            case ["log", "checkpoint"]:
                return self.log.note()
            case ["log", "tile", "entries", *_]:
                return self.log.bundle(path.removeprefix("/log/"))
            case ["log", "tile", *_]:
                return self.log.tile(path.removeprefix("/log/"))
            case ["v1", "log", "consistency"]:
                return self.log.consistency(int(query["old"]), int(query["new"]))
            case ["v1", "log", "entries"]:
                return self.log.shown([int(at) for at in query["indices"].split(",")], int(query["size"]))
            case ["v1", "log", "proof"]:
                at = (self.log.proves or self.place)(query["session"], int(query["head"]))
                return None if at is None else self.log.inclusion(at)
            case _:
                return None

    def place(self, session: str, size: int) -> int | None:
        """Where the newest head of a session stands in the log."""
        made = self.recordings.get(session)
        head = None if made is None else made.head()
        return self.log.entries.index(head) if head in self.log.entries else None

    def _sessions(self, path: str, query: dict[str, str], handler: BaseHTTPRequestHandler) -> bytes | None:
        match path.split("/")[1:]:
            case ["v1", "manifest"]:
                newest = next(iter(self.recordings.values()), None)
                own = LOGGED.sign(PROVIDER) if newest is None else newest.manifest.sign(newest.provider)
                return self.stated or own
            case ["v1", "keys"] if self.statements is not None:
                return KeysFile(tuple(self.statements)).encode()
            case ["v1", "sessions"]:
                return self.page(query)
            case ["v1", "sessions", session, "consistency"]:
                return self.continues(session, int(query["old"]), int(query["new"]))
            case ["v1", "sessions", session, what]:
                pass
            case _:
                return None
        made = self.earlier.get((session, int(query.get("size", 0))), self.recordings.get(session))
        if made is None or session in self.withheld:
            return None
        by_key = handler.headers.get("Authorization") == f"Bearer {KEY}"
        if not by_key and handler.headers.get("X-Verifiable-Capability", "") != made.capability.hex():
            return None
        if what == "receipt":
            receipt = made.receipt() if made.log.turns else None
            return b"" if receipt is None else (receipt.without_capability() if by_key else receipt).encode()
        turns = None if "turns" not in query else [int(turn) for turn in query["turns"].split(",")]
        if turns is not None and max(turns) >= made.log.turns:
            return None
        kind = {"tokens": Kind.TOKENS, "full": Kind.FULL}[query.get("kind", "tokens")]
        return made.evidence(kind, turns).encode()

    def continued(self, session: str, old: int, new: int) -> bytes | None:
        """The consistency proof of a session between two sizes."""
        made = self.recordings.get(session)
        if made is None or not 0 < old < new <= made.log.size:
            return None
        return json.dumps({"path": [item.hex() for item in prefix_path(made.log.tree.range, old, new)]}).encode()

    def page(self, query: dict[str, str]) -> bytes:
        """A page of the list of sessions."""
        ids = sorted(self.recordings)
        start = int(query.get("before", 0))
        listed = [
            {
                "id": name,
                "size": self.recordings[name].log.size,
                "opened": 5,
                "head": base64.urlsafe_b64encode(self.recordings[name].head()).decode().rstrip("="),
            }
            for name in ids[start : start + PAGE]
        ]
        more = str(start + PAGE) if start + PAGE < len(ids) else None
        return json.dumps({"sessions": listed, "next": more}).encode()
