"""The checks that need no model: signatures, manifest, log paths, structure, and that what was used is what was asked.

Pure functions in the order of spec/protocol.md, cheapest first; the first that fails raises VerificationError with
its reason code (or MalformedError). What they return is safe to build on: everything in it was bound to the signed
head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.manifest.manifest import Manifest, verify_manifest
from verifiable.request.request import Request, parse_canonical
from verifiable.session import records
from verifiable.session.evidence import Evidence, Kind, PackedTokens, id_width
from verifiable.session.head import Head, verify_head
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifiable.session.records import Close, Leaf, Open, Token
from verifiable.session.structure import TurnSpan, check_marks, check_structure, check_tokens
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PublicKey


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session whose shown leaves are bound to a head signed under a trusted manifest."""

    manifest: Manifest
    head: Head
    opened: Open
    spans: tuple[TurnSpan, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class OpenedTurn:
    """One turn of the evidence. `tokens` are the claimed ids in order; `shown` holds the records that the evidence
    opens; `suppressed` are the ids that the manifest bars from every answer.
    """

    span: TurnSpan
    request: Request
    secret: bytes
    tokens: PackedTokens | None
    shown: Mapping[int, Token]
    suppressed: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every token of the turn is known, packed or as records."""
        return self.tokens is not None or len(self.shown) == self.span.end.completion_count


def check_session(
    head: bytes, manifest: bytes, opening: Opening, trusted: Iterable[PublicKey]
) -> tuple[OpenedSession, dict[int, Token]]:
    """Check signatures, validity, paths and structure. Returns the session, and any token leaves shown, by index."""
    statement = verify_manifest(manifest, trusted)
    signed = verify_head(head, statement.session_keys)
    _same("manifest-differs", "the head was made under another manifest", signed.manifest_digest, statement.digest())
    opening.check(signed.size, signed.root)
    leaves: dict[int, Leaf] = {}
    tokens: dict[int, Token] = {}
    for index, data in opening.leaves.items():
        leaf = records.parse(data)
        if isinstance(leaf, Token):
            if leaf.seq != index or leaf.session != signed.session:
                raise VerificationError(
                    f"the record at leaf {index} belongs elsewhere",
                    code="sequence-broken",
                    expected=f"leaf {index} of session {signed.session.hex()}",
                    found=f"leaf {leaf.seq} of session {leaf.session.hex()}",
                    hint="It was taken from another place or another session.",
                )
            tokens[index] = leaf
        else:
            leaves[index] = leaf
    spans = check_structure(leaves, signed.size, signed.session)
    opened = leaves[0]
    if not isinstance(opened, Open):  # check_structure has made sure; this tells the type checker
        raise MalformedError("leaf 0", expected="an open leaf", found=type(opened).__name__)
    _same(
        "manifest-differs", "the session was opened under another manifest", opened.manifest_digest, statement.digest()
    )
    statement.check_valid_at(opened.time, "session's opening")
    statement.check_valid_at(signed.time, "head")
    if signed.time < opened.time:
        raise VerificationError(
            "the head is older than the session",
            code="time-reversed",
            expected=f"from {opened.time}",
            found=str(signed.time),
        )
    closed = isinstance(leaves[max(leaves)], Close)
    return OpenedSession(statement, signed, opened, spans, closed), tokens


def check_receipt(receipt: Receipt, trusted: Iterable[PublicKey], text: str | None = None) -> OpenedSession:
    """Check a receipt and, if given, that `text` is what the receipt's turn committed to."""
    session, tokens = check_session(receipt.head, receipt.manifest, receipt.opening, trusted)
    if tokens:
        raise MalformedError("receipt", expected="no token leaves", found=f"{len(tokens)} of them")
    if receipt.turn >= len(session.spans):
        raise VerificationError(
            "the receipt's turn is not in the log",
            code="incomplete",
            expected=f"turn {receipt.turn}",
            found=f"{len(session.spans)} turns",
        )
    if text is not None:
        check_text(session, receipt.turn, text)
    if receipt.log is not None:
        _check_log(receipt.log, receipt.head, session.manifest)
    return session


def check_text(session: OpenedSession, turn: int, text: str) -> None:
    """Raise VerificationError (`text-differs`) unless `text` is what the turn committed to."""
    if turn >= len(session.spans):
        raise VerificationError(
            "there is no such turn", code="incomplete", expected=f"turn {turn}", found=f"{len(session.spans)} turns"
        )
    _same(
        "text-differs",
        "the text is not the text that was committed",
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(),
        session.spans[turn].end.text_digest,
    )


def _check_log(proof: bytes, head: bytes, manifest: Manifest) -> None:
    if manifest.log is None:
        raise VerificationError(
            "the receipt claims a log that its manifest does not name",
            code="log-differs",
            expected="a manifest with a log key",
            found="none",
        )
    TlogProof.parse(proof).verify(head, manifest.log)


def check_evidence(evidence: Evidence, trusted: Iterable[PublicKey]) -> tuple[OpenedSession, tuple[OpenedTurn, ...]]:
    """Check everything about evidence that needs no model and no sampler replay."""
    session, tokens = check_session(evidence.head, evidence.manifest, evidence.opening, trusted)
    turns = []
    for part in evidence.turns:
        if part.turn >= len(session.spans):
            raise VerificationError(
                "the evidence opens a turn that the log lacks",
                code="incomplete",
                expected=f"a turn below {len(session.spans)}",
                found=str(part.turn),
            )
        span = session.spans[part.turn]
        shown = {seq: token for seq, token in tokens.items() if span.first <= seq < span.end.seq}
        suppressed = session.manifest.model.suppressed
        turn = OpenedTurn(span, parse_canonical(part.request), part.secret, part.tokens, shown, suppressed)
        _check_turn(session, turn, evidence.kind)
        turns.append(turn)
    stray = len(tokens) - sum(len(turn.shown) for turn in turns)
    if stray:
        raise MalformedError(
            "evidence", expected="every record in an opened turn", found=f"{stray} records of other turns"
        )
    return session, tuple(turns)


def _check_turn(session: OpenedSession, turn: OpenedTurn, kind: Kind) -> None:
    leaf, end, manifest, request = turn.span.turn, turn.span.end, session.manifest, turn.request
    where = f"turn {leaf.turn}"
    salted: list[Leaf] = [leaf, end, *turn.shown.values()]
    for part in salted:
        _same("salt-differs", f"the salt of leaf {part.seq}", part.salt, records.salt(turn.secret, part.seq))
    _same("request-differs", f"the request of {where}", hashlib.sha256(request.canonical).digest(), leaf.request_digest)
    if request.session not in (None, "new", session.head.session.hex()):
        raise VerificationError(
            f"{where} belongs to another session",
            code="session-differs",
            expected=str(request.session),
            found=session.head.session.hex(),
        )
    _same("parameters-differ", f"the stop strings of {where}", records.stop_digest(request.stops), leaf.stop_digest)
    try:
        asked = request.params(manifest.defaults, manifest.k, manifest.runtime.n_ctx, leaf.prompt_count)
    except PolicyError as error:
        raise VerificationError(
            f"{where} answers a prompt that can't have been evaluated: {error.what}",
            code="counts-differ",
            expected=error.expected,
            found=error.found,
        ) from error
    if asked != leaf.params:
        names = [name for name in asked.__slots__ if getattr(asked, name) != getattr(leaf.params, name)]
        raise VerificationError(
            f"{where} was not sampled with the parameters that were asked for",
            code="parameters-differ",
            expected=", ".join(f"{name} {getattr(asked, name)}" for name in names),
            found=", ".join(f"{name} {getattr(leaf.params, name)}" for name in names),
        )
    source = request.nonce_source()
    nonce = request.nonce if request.nonce is not None else b"" if source is records.NonceSource.SEED else leaf.nonce
    if leaf.nonce_source is not source or leaf.nonce != nonce:
        raise VerificationError(
            f"{where} does not use the client's nonce",
            code="nonce-differs",
            expected=f"{source.name.lower()}: {nonce.hex()}",
            found=f"{leaf.nonce_source.name.lower()}: {leaf.nonce.hex()}",
        )
    if turn.tokens is not None:
        if kind is not Kind.TOKENS or turn.shown:
            raise MalformedError(
                "evidence", expected="packed tokens only in evidence of kind tokens", found=kind.name.lower()
            )
        if turn.tokens.count != end.completion_count:
            raise VerificationError(
                f"the packed tokens of {where}",
                code="counts-differ",
                expected=end.completion_count,
                found=turn.tokens.count,
            )
    _check_records(session, turn)
    if kind is Kind.FULL:
        tokens = [turn.shown[seq] for seq in sorted(turn.shown)]
        check_tokens(turn.span, tokens)
        ids, sources = [token.token for token in tokens], [token.source for token in tokens]
        digest = records.tokens_digest(ids, sources, [token.row == 0 for token in tokens])
        _same("record-invalid", f"the end of {where} contradicts its records", digest, end.tokens_digest)
    elif kind is Kind.TOKENS and turn.tokens is None:
        raise MalformedError("evidence of kind tokens", expected=f"the packed tokens of {where}", found="none")


def _check_records(session: OpenedSession, turn: OpenedTurn) -> None:
    leaf, manifest = turn.span.turn, session.manifest
    vocabulary = manifest.model.vocabulary
    entries = min(manifest.k, vocabulary)
    for seq, token in turn.shown.items():
        position = leaf.prompt_count + seq - turn.span.first
        if len(token.entries.ids) != entries or (token.turn, token.position) != (leaf.turn, position):
            raise VerificationError(
                f"the record at leaf {seq}",
                code="record-invalid",
                expected=f"{entries} entries, turn {leaf.turn}, position {position}",
                found=f"{len(token.entries.ids)} entries, turn {token.turn}, position {token.position}",
            )
        if max(token.token, int(token.entries.ids.max())) >= vocabulary:
            raise VerificationError(
                f"a token id in the record at leaf {seq}",
                code="record-invalid",
                expected=f"ids below {vocabulary}",
                found=max(token.token, int(token.entries.ids.max())),
            )
    if turn.tokens is None:
        return
    if turn.tokens.width != id_width(vocabulary):
        raise MalformedError("packed token width", expected=id_width(vocabulary), found=turn.tokens.width)
    ids, sources, fresh = turn.tokens.unpack()
    if ids and max(ids) >= vocabulary:
        raise VerificationError(
            f"a token id of turn {leaf.turn}", code="record-invalid", expected=f"ids below {vocabulary}", found=max(ids)
        )
    if records.tokens_digest(ids, sources, fresh) != turn.span.end.tokens_digest:
        raise VerificationError(
            f"the token ids or marks of turn {leaf.turn} in the evidence are not those that were committed",
            code="evidence-differs",
            expected=turn.span.end.tokens_digest.hex(),
            found=records.tokens_digest(ids, sources, fresh).hex(),
            hint="The evidence was changed on its way; this alone doesn't show by whom. Get it again.",
        )
    check_marks(turn.span, [(source, *step) for source, step in zip(sources, turn.tokens.steps(), strict=True)])


def _same(code: str, what: str, found: bytes, expected: bytes) -> None:
    if found != expected:
        raise VerificationError(what, code=code, expected=expected.hex(), found=found.hex())
