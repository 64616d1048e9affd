"""Runs one case of a vector file through the Python implementation.

An outcome is `{"ok": …}` with what a reader has to find, or `{"error": code}`: a reason code of spec/reason-codes.md,
`malformed`, or `policy` for a request that is well formed but not allowed.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from verifiable.checking.asked import check_asked
from verifiable.checking.checks import OpenedSession, check_evidence, check_receipt, signed_by
from verifiable.checking.fraud import Fraud
from verifiable.checking.membership import check_quorum
from verifiable.checking.offline import verify
from verifiable.checking.registry import verify_verdict
from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.limits import MERGE_DELAY
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest
from verifiable.manifest.statements import KeysFile
from verifiable.request.exchange import Exchange
from verifiable.request.request import parse_body, parse_canonical
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingDefaults, SamplingParams, acceptable, choose, gumbel, sampling_key
from verifiable.session import records
from verifiable.session.challenge import draw_sessions, draw_turns, place_window, window_lot
from verifiable.session.delivery import deliver
from verifiable.session.evidence import Evidence, PackedTokens
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt, reader_capability
from verifiable.session.records import Close, End, Leaf, Open, Token, Turn
from verifiable.tlog import merkle
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import NOBODY, CosignerKey, Quorum
from verifiable.tlog.proof import TlogProof
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PublicKey
from verifier.offline.fault import Fault
from verifier.offline.question import check_answers
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable

Case = dict[str, Any]
Outcome = dict[str, Any]

DIGITS = 9
"""Decimals of real numbers in outcomes; readers compare them with a tolerance of 1e-8."""


def run(operation: str, case: Case) -> Outcome:
    """The outcome of a case of the vector file with this operation."""
    try:
        return {"ok": OPERATIONS[operation](case)}
    except VerificationError as error:
        return {"error": error.code}
    except MalformedError:
        return {"error": "malformed"}
    except PolicyError:
        return {"error": "policy"}


def cbor(case: Case) -> Any:
    tags = frozenset(case.get("tags", []))
    return show(encoding.decode(bytes.fromhex(case["input"]), tags=tags))


def show(value: Any) -> Any:
    """A decoded CBOR value as JSON in which every type can be told from every other."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": struct.pack(">d", value).hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, list):
        return [show(item) for item in value]
    if isinstance(value, dict):
        return {"map": [[show(key), show(item)] for key, item in value.items()]}
    return {"tag": value.tag, "value": show(value.value)}


def key(case: Case) -> Any:
    found = PublicKey.parse(case["vkey"])
    return {"name": found.name, "key": found.raw.hex(), "kid": found.kid.hex()}


def signature(case: Case) -> Any:
    public = PublicKey("vectors.example", bytes.fromhex(case["key"]))
    public.verify(bytes.fromhex(case["signature"]), bytes.fromhex(case["message"]))
    return True


def envelope(case: Case) -> Any:
    signed = cose.verify1(bytes.fromhex(case["input"]), trusted(case), case["typ"])
    return {"payload": signed.payload.hex(), "signer": signed.key.name}


def trusted(case: Case) -> list[PublicKey]:
    return [PublicKey.parse(text) for text in case["trusted"]]


def tree(case: Case) -> Any:
    """Five questions about a tree, by `what`."""
    if case["what"] == "root":
        leaves = [merkle.leaf_hash(bytes.fromhex(entry)) for entry in case["entries"]]
        return merkle.Tree.from_leaves(leaves).root().hex()
    proof = [bytes.fromhex(value) for value in case["proof"]]
    if case["what"] == "inclusion":
        leaf, root = bytes.fromhex(case["leaf"]), bytes.fromhex(case["root"])
        merkle.verify_inclusion(leaf, case["index"], case["size"], proof, root)
        return True
    if case["what"] == "consistency":
        old, new = bytes.fromhex(case["old_root"]), bytes.fromhex(case["root"])
        merkle.verify_consistency(case["old_size"], case["size"], proof, old, new)
        return True
    known = {index: bytes.fromhex(value) for index, value in case["leaves"]}
    return merkle.root_from_multiproof(case["size"], known, proof).hex()


def derivation(case: Case) -> Any:
    """The digests and keys that are derived from others, by `what`."""
    what = case["what"]
    if what == "turn-secret":
        return records.turn_secret(bytes.fromhex(case["secret"]), case["turn"]).hex()
    if what == "reader-capability":
        return reader_capability(bytes.fromhex(case["owner"])).hex()
    if what == "salt":
        return records.salt(bytes.fromhex(case["secret"]), case["seq"]).hex()
    if what == "prompt-digest":
        return records.ids_digest(case["ids"]).hex()
    if what == "stop-digest":
        return records.stop_digest(tuple(case["stops"])).hex()
    if what == "tokens-digest":
        sources = [records.Source(source) for source in case["sources"]]
        return records.tokens_digest(case["ids"], sources, case["fresh"]).hex()
    if what == "drawn-sessions":
        weights = {bytes.fromhex(session): weight for session, weight in case["sessions"]}
        return [session.hex() for session in draw_sessions(bytes.fromhex(case["seed"]), weights, case["count"])]
    if what == "drawn-turns":
        session = bytes.fromhex(case["session"])
        return draw_turns(bytes.fromhex(case["seed"]), session, case["turns"], case["count"])
    if what == "drawn-window":
        lot = window_lot(bytes.fromhex(case["seed"]), bytes.fromhex(case["session"]))
        return place_window(lot, case["tokens"], case["length"])
    return sampling_key(case["source"], bytes.fromhex(case["nonce"]), bytes.fromhex(case["prompt_digest"])).hex()


def manifest(case: Case) -> Any:
    found = Manifest.parse(bytes.fromhex(case["input"]))
    return {
        "digest": found.digest().hex(),
        "provider": found.provider,
        "valid_from": found.valid_from,
        "valid_to": found.valid_to,
        "files": [[file.name, file.sha256.hex(), file.size] for file in found.model.files],
        "vocabulary": found.model.vocabulary,
        "n_ctx": found.runtime.n_ctx,
        "fingerprint": found.runtime.fingerprint.hex(),
        "invariant": found.runtime.invariant,
        "k": found.k,
        "value_kind": found.value_kind,
        "defaults": [getattr(found.defaults, name) for name in found.defaults.__slots__],
        "adapters": [[file.name, file.sha256.hex(), file.size, file.scale] for file in found.model.adapters],
        "suppressed": list(found.model.suppressed),
        "device": found.runtime.device,
        "rope": found.runtime.rope.stated(),
        "pairs": found.runtime.pairs,
        "libraries": [[each.name, each.sha256.hex()] for each in found.runtime.libraries],
        "compiler": found.runtime.compiler,
        "drafters": list(found.drafters),
        "session_keys": [item.kid.hex() for item in found.session_keys],
        "log": None if found.log is None else found.log.name,
    }


def head(case: Case) -> Any:
    found = Head.parse(bytes.fromhex(case["input"]))
    return {
        "session": found.session.hex(),
        "size": found.size,
        "root": found.root.hex(),
        "manifest": found.manifest_digest.hex(),
        "time": found.time,
        "interim": found.interim,
    }


def leaf(case: Case) -> Any:
    return show_leaf(records.parse(bytes.fromhex(case["input"])))


def show_leaf(found: Leaf) -> Any:
    shown: dict[str, Any] = {"session": found.session.hex(), "seq": found.seq, "salt": found.salt.hex()}
    match found:
        case Open():
            return {"kind": "open", **shown, "manifest": found.manifest_digest.hex(), "time": found.time}
        case Turn():
            return {
                "kind": "turn",
                **shown,
                "turn": found.turn,
                "request": found.request_digest.hex(),
                "prompt": found.prompt_digest.hex(),
                "prompt_count": found.prompt_count,
                "params": show_params(found.params),
                "stops": found.stop_digest.hex(),
                "nonce": found.nonce.hex(),
                "nonce_source": int(found.nonce_source),
                "cached": found.cached,
            }
        case Token():
            return {
                "kind": "token",
                **shown,
                "turn": found.turn,
                "position": found.position,
                "token": found.token,
                "source": int(found.source),
                "step": found.step,
                "row": found.row,
                "ids": [int(item) for item in found.entries.ids],
                "logits": found.entries.logit_bytes().hex(),
            }
        case End():
            return {
                "kind": "end",
                **shown,
                "turn": found.turn,
                "finish": int(found.finish),
                "prompt_count": found.prompt_count,
                "completion_count": found.completion_count,
                "text": found.text_digest.hex(),
                "tokens": found.tokens_digest.hex(),
                "drafted": found.drafted,
                "accepted": found.accepted,
            }
        case Close():
            return {"kind": "close", **shown, "turns": found.turns}


def show_params(params: SamplingParams) -> list[Any]:
    """Parameters in the order of their keys."""
    return [
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.max_tokens,
        params.repeat_penalty,
        params.repeat_last_n,
        params.frequency_penalty,
        params.presence_penalty,
        [list(pair) for pair in params.logit_bias],
        params.ignore_eos,
        params.constraint.hex(),
    ]


def packed(case: Case) -> Any:
    found = PackedTokens.from_cbor(encoding.decode(bytes.fromhex(case["input"])))
    ids, sources, fresh = found.unpack()
    return {
        "ids": ids,
        "sources": [int(source) for source in sources],
        "steps": [list(step) for step in found.steps(fresh)],
        "digest": records.tokens_digest(ids, sources, fresh).hex(),
    }


def request(case: Case) -> Any:
    """A canonical request; with `context` also the parameters that follow from it."""
    found = parse_canonical(text_or_hex(case))
    shown: dict[str, Any] = {
        "digest": found.digest().hex(),
        "nonce": None if found.nonce is None else found.nonce.hex(),
        "nonce_source": int(found.nonce_source()),
        "session": found.session,
        "turn": found.turn,
        "manifest": None if found.manifest is None else found.manifest.hex(),
        "stops": list(found.stops),
        "seed": found.seed,
    }
    if "context" in case:
        context = case["context"]
        defaults = SamplingDefaults(*context["defaults"])
        try:
            params = found.params(defaults, context["k"], context["n_ctx"], context["prompt_count"])
            shown["params"] = show_params(params)
        except PolicyError:
            shown["params"] = None
    return shown


def text_or_hex(case: Case) -> bytes:
    """The `text` of a case as UTF-8, or the bytes of its `input` where they are no text."""
    return case["text"].encode() if "text" in case else bytes.fromhex(case["input"])


def body(case: Case) -> Any:
    return parse_body(case["path"], text_or_hex(case)).canonical.decode()


def draw(case: Case) -> Any:
    """One token's draw: the noise of its entries, and the ids that a verifier accepts."""
    entries = Entries.from_bytes(
        np.array(case["ids"], "<u4").tobytes() if "ids" in case else bytes.fromhex(case["id_bytes"]),
        bytes.fromhex(case["logits"]),
    )
    temperature, top_k, top_p, min_p = case["params"]
    params = SamplingParams.from_cbor({1: float(temperature), 2: top_k, 3: float(top_p), 4: float(min_p), 5: 1})
    secret = bytes.fromhex(case["key"])
    noise = gumbel(secret, case["position"], entries.ids)
    allowed = acceptable(entries, params, secret, case["position"])
    if choose(entries, params, secret, case["position"]) not in allowed:
        raise VerificationError("an honest draw is not accepted", code="token-not-sampled")
    return {"noise": [round(float(value), DIGITS) for value in noise], "acceptable": sorted(allowed)}


def delivery(case: Case) -> Any:
    text, stopped = deliver([bytes.fromhex(piece) for piece in case["pieces"]], tuple(case["stops"]))
    return {"text": text, "stopped": stopped, "digest": hashlib.sha256(text.encode()).hexdigest()}


def checkpoint(case: Case) -> Any:
    opened = open_checkpoint(case["text"].encode(), PublicKey.parse(case["log"]), witnesses(case))
    signed = opened.checkpoint
    seen = {"witnesses": list(opened.witnesses)} if "witnesses" in case else {}
    return {"origin": signed.origin, "size": signed.size, "root": signed.root.hex(), **seen}


def witnesses(case: Case) -> list[CosignerKey]:
    return [CosignerKey.parse(text) for text in case.get("witnesses", ())]


def tlog_proof(case: Case) -> Any:
    proof = TlogProof.parse(case["text"].encode())
    signed = proof.verify(bytes.fromhex(case["entry"]), PublicKey.parse(case["log"])).checkpoint
    return {"index": proof.index, "size": signed.size}


def receipt(case: Case) -> Any:
    texts = [case["text"]] if case.get("text") is not None else []
    held = check_receipt(Receipt.parse(base64.b64decode(case["input"])), trusted(case), *texts)
    if "witnesses" in case:
        check_quorum(held.logged, Quorum.of(witnesses(case), case.get("quorum")))
    return show_session(held.session)


def show_session(session: OpenedSession) -> dict[str, Any]:
    return {
        "signed_by": session.signed.by,
        "session": session.head.session.hex(),
        "size": session.head.size,
        "turns": len(session.spans),
        "closed": session.closed,
    }


def exchange(case: Case) -> Any:
    """A client's exchange, and where it has a receipt what that is worth to the client: steps 1 to 11."""
    kept = Exchange.parse(text_or_hex(case))
    if kept.receipt is None:
        return None
    texts = [] if kept.text is None else [kept.text]
    held = check_receipt(kept.receipt, trusted(case), *texts)
    check_asked(held.session, kept.receipt.turn, kept.asked)
    return show_session(held.session)


def answer(case: Case) -> Any:
    """Evidence that is to answer for a receipt: step 18."""
    held = check_receipt(Receipt.parse(base64.b64decode(case["receipt"])), trusted(case))
    shown = check_evidence(Evidence.parse(base64.b64decode(case["evidence"])), trusted(case))
    check_answers(shown, held)
    one, other = Bound.of(held.receipt.opening, held.session.head), Bound.of(shown.evidence.opening, shown.session.head)
    check_same_history(one, other)
    return show_session(shown.session)


class Refused(VerificationError):
    """A fault that replay found, as an error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what, code=fault.code)


def evidence(case: Case) -> Any:
    """All checks of evidence that need no model, then the replay of every record shown."""
    shown = check_evidence(Evidence.parse(base64.b64decode(case["input"])), trusted(case))
    opened = []
    for turn in shown.turns:
        fault = replay_records(turn)
        if fault is not None:
            raise Refused(fault)
        opened.append({"turn": turn.number, "tokens": turn.count, "replayed": replayable(turn)})
    return {**show_session(shown.session), "opened": opened}


def fraud(case: Case) -> Any:
    """What a fraud file proves."""
    made = Fraud.parse(base64.b64decode(case["input"]))
    proven = made.verify(trusted(case), case.get("delay", MERGE_DELAY))
    manifest, key = open_manifest(made.manifests[0], trusted(case))
    session = None if proven.session is None else proven.session.hex()
    return {
        "code": proven.code,
        "signed_by": signed_by(key, manifest, trusted(case)),
        "session": session,
        "turn": proven.turn,
        "position": proven.position,
    }


def keys(case: Case) -> Any:
    """What a keys file leads to, and what a receipt is worth by it: its code, and whether a key was revoked later."""
    chain = Chain.follow(trusted(case), KeysFile.parse(base64.b64decode(case["input"])).statements)
    found: dict[str, Any] = {"keys": [], "left_out": len(chain.ignored)}
    for each in chain:
        root, revoked = chain.root_of(each), chain.revoked(each)
        found["keys"].append([each.vkey(), (root or each).vkey(), None if revoked is None else revoked.time])
    if "log" in case:
        found["logs"] = [each.vkey() for each in chain.logs(PublicKey.parse(case["log"]))]
    if "receipt" in case:
        quorum = Quorum.of(witnesses(case)) if "witnesses" in case else NOBODY
        verdict = verify(base64.b64decode(case["receipt"]), trust=chain, text=case.get("text"), quorum=quorum)
        later = any(note.id == "key-revoked-later" for note in verdict.notes)
        found["receipt"] = [verdict.code, later]
    return found


def verdict(case: Case) -> Any:
    found = verify_verdict(base64.b64decode(case["input"]))
    said = found.statement
    return {
        "by": found.issuer.label,
        "about": found.subject.label,
        "report": said.report.hex(),
        "time": said.time,
        "status": said.status.value,
        "counts": list(said.counts),
        "tokens": [said.checked, said.total],
        "codes": list(said.codes),
        "where": said.where,
    }


OPERATIONS: dict[str, Callable[[Case], Any]] = {
    "cbor": cbor,
    "key": key,
    "signature": signature,
    "envelope": envelope,
    "tree": tree,
    "derivation": derivation,
    "manifest": manifest,
    "head": head,
    "leaf": leaf,
    "packed": packed,
    "request": request,
    "body": body,
    "draw": draw,
    "delivery": delivery,
    "checkpoint": checkpoint,
    "tlog-proof": tlog_proof,
    "receipt": receipt,
    "evidence": evidence,
    "exchange": exchange,
    "answer": answer,
    "fraud": fraud,
    "keys": keys,
    "verdict": verdict,
}
