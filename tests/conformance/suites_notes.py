"""C2SP text formats: signed notes, tree heads, cosignatures, witness requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial

from tests.conformance.harness import Outcome, Vectors, attempt, check, judge
from tests.logs import open_note
from verifiable.errors import MalformedError, VerifiableError, VerificationError
from verifiable.tlog import witness
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.tlog.cosignature import Cosignature, CosignerKey, cosign
from verifiable.tlog.merkle import leaf_hash
from verifiable.tlog.note import Ed25519Verifier, Note
from verifiable.wire.keys import PrivateKey, PublicKey

UNKNOWN_ORIGIN = "expects 403 for an unknown origin; tlog-witness has since changed to 404, which is what we answer"

LOOSE_BASE64 = (
    "expects 403 for a bad signature whose base64 also has stray bits in its last character; we refuse the "
    "spelling before the signature, with 400"
)

_EXPLAINED = {(403, 404): UNKNOWN_ORIGIN, (403, 400): LOOSE_BASE64}
_CODES = {"unverified": "untrusted-key", "invalid-signature": "bad-signature"}


def notes(vectors: Vectors) -> Iterator[Outcome]:
    data = vectors.json("signed-note/notes.json")
    for case in data["cases"]:
        name = f"note: {case['name']}"
        note = base64.b64decode(case["note_b64"])
        verifiers = [Ed25519Verifier(PublicKey.parse(vkey)) for vkey in case["vkeys"]]
        if case["result"] == "ok":
            opened = open_note(note, verifiers)
            names = [
                [line.name for line in opened.verified],
                [line.name for line in opened.unverified],
            ]
            right = names == [case["verified"], case["unverified"]] and Note.parse(note).format() == note
            yield check(name, right, str(names))
        elif case["result"] == "malformed":
            error = attempt(partial(open_note, note, verifiers))
            yield check(name, isinstance(error, MalformedError), str(error))
        else:
            yield judge(name, partial(open_note, note, verifiers), valid=False, code=_CODES[case["result"]])
    for vkey in data["good_vkeys"]:
        yield check(f"good vkey {vkey[:20]}", PublicKey.parse(vkey).vkey() == vkey)
    for vkey in data["bad_vkeys"]:
        yield judge(f"bad vkey {vkey[:20]}", partial(PublicKey.parse, vkey), valid=False)
    signed = data["sign"]
    peter = PublicKey.parse(data["good_vkeys"][0])
    opened = open_note(signed["note"].encode(), [Ed25519Verifier(peter)])
    yield check("note: signing", opened.text == signed["text"])


def tree_text(vectors: Vectors) -> Iterator[Outcome]:
    data = vectors.json("signed-note/tree-text.json")
    root = leaf_hash(data["record"].encode())
    head = Checkpoint("go.sum database tree", data["size"], root)
    yield check("tree text", head.text() == data["text"] and Checkpoint.parse(data["text"]) == head)
    for text in data["bad"]:
        yield judge(f"bad tree text {text[21:30]!r}", partial(Checkpoint.parse, text), valid=False)


def cosignatures(vectors: Vectors) -> Iterator[Outcome]:
    for case in vectors.json("tlog-cosignature/sunlight.json")["cases"]:
        key = CosignerKey.parse(case["vkey"])
        note = case["checkpoint"].encode()
        opened = open_note(note, [key])
        right = [line.name for line in opened.verified] == [key.name] and key.vkey() == case["vkey"]
        when = Cosignature.parse(key.kind, opened.verified[0].signature).timestamp
        # Another second in the signed time must not verify.
        (line,) = opened.verified
        moved = (int.from_bytes(line.signature[:8], "big") + 1).to_bytes(8, "big") + line.signature[8:]
        error = attempt(partial(key.verify_note, opened.text, moved))
        yield check(
            f"cosignature of {key.name}",
            right and when == 1767139200 and getattr(error, "code", "") == "bad-signature",
            f"{when}",
        )


def witness_requests(vectors: Vectors) -> Iterator[Outcome]:
    """The requests in order against one witness, which remembers what it cosigned."""
    data = vectors.json("tlog-witness/litewitness-add-checkpoint.json")
    raw = bytes.fromhex(data["sigsum_log_key_hex"])
    origin = "sigsum.org/v1/tree/4d6d8825a6bb689d459628312889dfbb0bcd41b5211d9e1ce768b0ff0309e562"
    logs = {origin: PublicKey(origin, raw)}
    seen: dict[str, witness.Cosigned] = {}
    ours = PrivateKey("example.com/witness", bytes(32))
    for number, case in enumerate(data["requests"], 1):
        body = case["body"].encode()
        try:
            request = witness.AddCheckpoint.parse(body)
            if request.format() != body:
                raise MalformedError("request does not come back as it was")
            head = witness.consider(request, logs, seen)
            seen[head.origin] = witness.Cosigned(head.size, head.root)
            status, answer = 200, cosign(head.text(), ours, 1767139200).line()
        except VerifiableError as error:
            status, answer = witness.status(error), str(error)
            if isinstance(error, VerificationError) and error.code == "stale-size":
                answer = witness.conflict_body(error).decode()
        same_status = status == case["status"]
        # The texts of refusals are each implementation's own; the bodies of successes and conflicts are specified.
        same_body = status not in (200, 409) or case["expect"] in answer
        exception = _EXPLAINED.get((case["status"], status), "")
        passed = same_status and same_body
        yield Outcome(f"request {number}", passed, "" if passed else exception, f"{status} {answer!r}")
