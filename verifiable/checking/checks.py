"""The checks that need no model: signatures, manifest, log paths, structure, and that all follows from the request.

Pure functions. The order is that of spec/protocol.md, whose numbers stand in the docstrings, cheapest first; the first
check that fails raises VerificationError with its reason code (or MalformedError):

1. `Receipt.parse` or `Evidence.parse`: the file. They check nothing else.
2. `check_head`, steps 2 and 3: who signed the manifest, and whether the head is by a key that the manifest names.
3. `check_session`, steps 4 to 8: whether the leaves shown are those under the head, and what sessions are made of.
4. `check_receipt`, steps 9 to 11: the turn, the text and the log proof.
5. `check_evidence`, steps 9 to 17 for each turn that is opened: request, parameters, nonce, tokens and records.

What they return is safe to build on: everything in it was bound to the signed head. It is made once and handed on, so
that nothing is parsed or checked twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from verifiable.checking import near
from verifiable.errors import MalformedError, PolicyError, VerificationError, reading_signed
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest
from verifiable.request.request import Request, parse_canonical
from verifiable.session import records
from verifiable.session.evidence import Evidence, Kind, PackedTokens, TurnEvidence, id_width
from verifiable.session.head import Head, open_head
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifiable.session.records import Close, End, Leaf, Open, Token, Turn
from verifiable.session.structure import TurnSpan, check_marks, check_structure, check_tokens
from verifiable.tlog.proof import Inclusion, TlogProof
from verifiable.wire.keys import PublicKey

_CHANGED = "What came is not what was signed: it was changed on its way, nobody knows by whom. Get it again."


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head signed by a session key of a trusted manifest: what both say, and their envelopes as they came.

    `key` signed the manifest, and is one of `chain`; `session_key` signed the head.
    """

    manifest: Manifest
    head: Head
    manifest_envelope: bytes
    head_envelope: bytes
    key: PublicKey
    session_key: PublicKey
    chain: Chain

    @property
    def provider(self) -> PublicKey:
        """The key by which the provider is trusted, whichever of its keys signed."""
        return self.chain.root_of(self.key) or self.key

    @property
    def by(self) -> str:
        """Who signed the manifest: the trusted key, and what its holder calls itself where that is another name."""
        return signed_by(self.key, self.manifest, self.chain)

    def other(self, head: bytes) -> SignedHead:
        """Another head, signed under the same manifest. Raises as `check_head`."""
        stated, key = open_head(head, self.manifest.session_keys)
        return replace(self, head=stated, head_envelope=head, session_key=key)


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session whose shown leaves are bound to a head signed under a trusted manifest."""

    signed: SignedHead
    opened: Open
    spans: tuple[TurnSpan, ...]
    closed: bool

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    @property
    def head(self) -> Head:
        return self.signed.head


@dataclass(frozen=True, slots=True)
class OpenedTurn:
    """One turn of the evidence. `tokens` are the claimed ids in order; `shown` holds the records that the evidence
    opens, by leaf; `suppressed` are the ids that the manifest bars from every answer.
    """

    span: TurnSpan
    request: Request
    secret: bytes
    tokens: PackedTokens | None
    shown: Mapping[int, Token]
    suppressed: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """Which turn of the session it is, from 0."""
        return self.span.number

    @property
    def leaf(self) -> Turn:
        return self.span.turn

    @property
    def end(self) -> End:
        return self.span.end

    @property
    def first(self) -> int:
        """The index of its first token's leaf."""
        return self.span.first

    @property
    def count(self) -> int:
        """How many tokens it has."""
        return self.span.end.completion_count

    @property
    def records(self) -> list[Token]:
        """The records shown, in order."""
        return [self.shown[seq] for seq in sorted(self.shown)]

    @property
    def whole(self) -> bool:
        """Whether every token of the turn is known, packed or as records."""
        return self.tokens is not None or len(self.shown) == self.count


@dataclass(frozen=True, slots=True)
class OpenedReceipt:
    """A receipt of which every check holds. `text` is the answer, where it was given and is the one committed to;
    `logged` what its log proof shows, where it has one.
    """

    receipt: Receipt
    session: OpenedSession
    text: str | None = None
    logged: Inclusion | None = None


@dataclass(frozen=True, slots=True)
class OpenedEvidence:
    """Evidence of which every check holds that needs no model and no replay."""

    evidence: Evidence
    session: OpenedSession
    turns: tuple[OpenedTurn, ...]

    @property
    def count(self) -> int:
        """How many tokens its turns have."""
        return sum(turn.count for turn in self.turns)

    def turn(self, number: int) -> OpenedTurn | None:
        """The turn of that number; None where the evidence does not open it."""
        return next((turn for turn in self.turns if turn.number == number), None)


def require_trust(trust: Sequence[PublicKey]) -> None:
    """Raise PolicyError where there is no key to trust: nothing can be verified then."""
    if not trust:
        raise PolicyError("no key to trust", hint="Get the provider's public key over a channel that you trust.")


def check_head(manifest: bytes, head: bytes, trusted: Iterable[PublicKey]) -> SignedHead:
    """Steps 2 and 3: open the manifest's envelope with the trusted keys, and the head's with the manifest's."""
    chain = Chain.of(trusted)
    stated, key = open_manifest(manifest, chain)
    read, session_key = open_head(head, stated.session_keys)
    return SignedHead(stated, read, manifest, head, key, session_key, chain)


def signed_by(key: PublicKey, manifest: Manifest, trusted: Iterable[PublicKey]) -> str:
    """How to name a provider: by the key that the verifier trusts, whose name is the verifier's own word."""
    chain = Chain.of(trusted)
    root = chain.root_of(key) or key
    called = "" if manifest.provider == root.name else f", which calls itself {manifest.provider}"
    return chain.name_of(key) + called


def check_session(signed: SignedHead, opening: Opening) -> tuple[OpenedSession, dict[int, Token]]:
    """Steps 4 to 8: paths, structure and validity. Returns the session, and any token leaves shown, by index."""
    statement, head = signed.manifest, signed.head
    if head.interim:
        raise VerificationError(
            "the head was signed in the middle of a turn",
            code="incomplete",
            expected="the head of a turn's end",
            found="an interim head",
            hint="It came with a chunk of an answer. The receipt has the head of the whole.",
        )
    _same(
        "other-manifest",
        "the head was made under another manifest than the one beside it",
        head.manifest_digest,
        statement.digest(),
        _CHANGED,
    )
    opening.check(head.size, head.root)
    leaves: dict[int, Leaf] = {}
    tokens: dict[int, Token] = {}
    for index, data in opening.leaves.items():
        with reading_signed():
            leaf = records.parse(data)
        if isinstance(leaf, Token):
            _same(
                "sequence-broken",
                f"the record at leaf {index} belongs elsewhere",
                f"leaf {leaf.seq} of session {leaf.session.hex()}",
                f"leaf {index} of session {head.session.hex()}",
                hint="It was taken from another place or another session.",
            )
            tokens[index] = leaf
        else:
            leaves[index] = leaf
    spans = check_structure(leaves, head.size, head.session, tokens.get(head.size - 1))
    opened = leaves[0]
    if not isinstance(opened, Open):  # check_structure has made sure; this tells the type checker
        raise MalformedError("leaf 0", expected="an open leaf", found=type(opened).__name__)
    _same(
        "manifest-differs", "the session was opened under another manifest", opened.manifest_digest, statement.digest()
    )
    statement.check_valid_at(opened.time, "session's opening")
    statement.check_valid_at(head.time, "head")
    if head.time < opened.time:
        raise VerificationError(
            "the head is older than the session",
            code="time-reversed",
            expected=f"from {opened.time}",
            found=str(head.time),
        )
    closed = isinstance(leaves[max(leaves)], Close)
    return OpenedSession(signed, opened, spans, closed), tokens


def check_receipt(receipt: Receipt, trusted: Iterable[PublicKey], *texts: str) -> OpenedReceipt:
    """Steps 2 to 11 of a receipt; `trusted` are the provider keys that may have signed the manifest.

    `texts` are readings of the answer as the client has it, one of which must be what the receipt's turn committed to.
    """
    return check_receipt_under(check_head(receipt.manifest, receipt.head, trusted), receipt, *texts)


def check_receipt_under(signed: SignedHead, receipt: Receipt, *texts: str) -> OpenedReceipt:
    """Steps 4 to 11 of a receipt whose own head and manifest were opened already (`check_head`)."""
    session, tokens = check_session(signed, receipt.opening)
    if tokens:
        raise MalformedError("receipt", expected="no token leaves", found=f"{len(tokens)} of them")
    span_of(session, receipt.turn)
    text = check_text(session, receipt.turn, *texts) if texts else None
    logged = None if receipt.log is None else _check_log(receipt.log, signed)
    return OpenedReceipt(receipt, session, text, logged)


def check_text(session: OpenedSession, turn: int, *texts: str) -> str:
    """Step 10. Returns the first of the readings that is what the turn committed to.

    Raises VerificationError where none is: `text-differs`, or `other-turn` for the text of another turn.
    """
    committed = span_of(session, turn).end.text_digest
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    if committed not in digests:
        check_not_another(turn, "text", [span.number for span in session.spans if span.end.text_digest in digests])
        only = near.difference(texts[0], committed)
        what, why = "the text is not the text that was committed", "is it the answer exactly as it was received?"
        if only is not None:
            what, why = f"{what}: {only} only", "programs change this when a text is saved or copied."
        _same("text-differs", what, digests[0], committed, f"Look at your own copy first: {why}")
    return texts[digests.index(committed)]


def check_not_another(turn: int, what: str, fits: Sequence[int]) -> None:
    """Raise VerificationError (`other-turn`) where a client's copy is what another turn of the session committed to."""
    if fits:
        raise VerificationError(
            f"your {what} is that of turn {fits[-1]}, not of turn {turn}",
            code="other-turn",
            expected=f"the {what} of turn {turn}",
            found=f"the {what} of turn {fits[-1]}",
            hint="Give the copy and the receipt of one answer.",
        )


def span_of(session: OpenedSession, turn: int) -> TurnSpan:
    """A turn of the session. Raises VerificationError (`incomplete`) where the log lacks it."""
    if turn >= len(session.spans):
        raise VerificationError(
            "the turn is not in the log",
            code="incomplete",
            expected=f"turn {turn}",
            found=f"{len(session.spans)} turns",
        )
    return session.spans[turn]


def _check_log(proof: bytes, signed: SignedHead) -> Inclusion:
    """Step 11, but for witnesses (`membership`)."""
    if signed.manifest.log is None:
        raise VerificationError(
            "the receipt claims a log that its manifest does not name",
            code="untrusted-key",
            expected="a manifest with a log key",
            found="none",
            hint="Nobody signs what is attached to a receipt: anybody may have attached this.",
        )
    return TlogProof.parse(proof).verify(signed.head_envelope, signed.chain.logs(signed.manifest.log))


def check_evidence(evidence: Evidence, trusted: Iterable[PublicKey]) -> OpenedEvidence:
    """Steps 2 to 17 of evidence: everything that needs neither the model nor the sampler's replay."""
    return check_evidence_under(check_head(evidence.manifest, evidence.head, trusted), evidence)


def check_evidence_under(signed: SignedHead, evidence: Evidence) -> OpenedEvidence:
    """Steps 4 to 17 of evidence whose own head and manifest were opened already (`check_head`)."""
    session, tokens = check_session(signed, evidence.opening)
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
        turn = OpenedTurn(span, _committed(span, part), part.secret, part.tokens, shown, suppressed)
        _check_turn(session, turn, evidence.kind)
        turns.append(turn)
    stray = len(tokens) - sum(len(turn.shown) for turn in turns)
    if stray:
        raise MalformedError(
            "evidence", expected="every record in an opened turn", found=f"{stray} records of other turns"
        )
    return OpenedEvidence(evidence, session, tuple(turns))


def _committed(span: TurnSpan, part: TurnEvidence) -> Request:
    """Step 9: the request whose digest the turn committed to."""
    digest = hashlib.sha256(part.request).digest()
    what = f"the request of turn {span.number} in the evidence is not the one that was committed to"
    _same("evidence-differs", what, digest, span.turn.request_digest, _CHANGED)
    with reading_signed():
        return parse_canonical(part.request)


def _check_turn(session: OpenedSession, turn: OpenedTurn, kind: Kind) -> None:
    """Steps 10 to 17 of one turn."""
    leaf, end, request = turn.leaf, turn.end, turn.request
    where = f"turn {leaf.turn}"
    salted: list[Leaf] = [leaf, end, *turn.shown.values()]
    for part in salted:
        _same("salt-differs", f"the salt of leaf {part.seq}", part.salt, records.salt(turn.secret, part.seq), _CHANGED)
    check_follows(session, leaf, request)
    if turn.tokens is not None and (kind is not Kind.TOKENS or turn.shown):
        expected = "packed tokens only in evidence of kind tokens"
        raise MalformedError("evidence", expected=expected, found=kind.name.lower())
    _check_records(session, turn)
    if kind is Kind.FULL:
        tokens = turn.records
        _same("incomplete", f"the evidence hides records of {where}", len(tokens), end.completion_count, _CHANGED)
        check_tokens(turn.span, tokens)
        ids, sources = [token.token for token in tokens], [token.source for token in tokens]
        digest = records.tokens_digest(ids, sources, [token.row == 0 for token in tokens])
        _same("record-invalid", f"the end of {where} contradicts its records", digest, end.tokens_digest)
    elif kind is Kind.TOKENS and turn.tokens is None:
        raise MalformedError("evidence of kind tokens", expected=f"the packed tokens of {where}", found="none")


def check_follows(session: OpenedSession, leaf: Turn, request: Request) -> None:
    """Steps 11 to 13: a turn's place, stop strings, parameters and nonce follow from the request that it answers.

    Raises VerificationError: `session-differs`, `manifest-differs`, `parameters-differ`, `counts-differ`,
    `nonce-differs`.
    """
    manifest, where = session.manifest, f"turn {leaf.turn}"
    _check_place(session, leaf.turn, request)
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
            f"{where} was not sampled with the parameters of its request",
            code="parameters-differ",
            expected=", ".join(f"{name} {getattr(asked, name)}" for name in names),
            found=", ".join(f"{name} {getattr(leaf.params, name)}" for name in names),
        )
    source = request.nonce_source()
    nonce = request.turn_nonce(leaf.nonce)
    _same(
        "nonce-differs",
        f"{where} does not use the request's nonce",
        f"{leaf.nonce_source.name.lower()}: {leaf.nonce.hex()}",
        f"{source.name.lower()}: {nonce.hex()}",
    )


def _check_place(session: OpenedSession, turn: int, request: Request) -> None:
    """Of step 11: the turn stands where its request has its place, under the manifest that the request pins."""
    here = f"turn {turn} of {len(session.spans)} in session {session.head.session.hex()}"
    match request.session:
        case None:
            held, wanted = turn == 0 and len(session.spans) == 1, "the only turn of a session"
        case "new":
            held, wanted = turn == 0, "turn 0 of a session"
        case named:
            held, wanted = named == session.head.session.hex() and turn > 0, f"a later turn of session {named}"
    if request.turn is not None:
        held, wanted = held and turn == request.turn, f"{wanted}, turn {request.turn}"
    _same("session-differs", f"turn {turn} stands elsewhere than its request says", here, here if held else wanted)
    if request.manifest is not None:
        pinned, ours = request.manifest, session.manifest.digest()
        _same("manifest-differs", f"the request of turn {turn} pins another manifest", ours, pinned)


def _check_records(session: OpenedSession, turn: OpenedTurn) -> None:
    """Steps 15 and 16, and 17 of packed tokens."""
    leaf, manifest = turn.leaf, session.manifest
    vocabulary = manifest.model.vocabulary
    entries = min(manifest.k, vocabulary)
    for seq, token in turn.shown.items():
        position = leaf.prompt_count + seq - turn.first
        _same(
            "record-invalid",
            f"the record at leaf {seq}",
            f"{len(token.entries.ids)} entries, turn {token.turn}, position {token.position}",
            f"{entries} entries, turn {leaf.turn}, position {position}",
        )
        _check_ids(
            f"a token id in the record at leaf {seq}", max(token.token, int(token.entries.ids.max())), vocabulary
        )
    if turn.tokens is None:
        return
    if turn.tokens.width != id_width(vocabulary):
        raise MalformedError("packed token width", expected=id_width(vocabulary), found=turn.tokens.width)
    ids, sources, fresh = turn.tokens.unpack()
    _same(
        "evidence-differs",
        f"the token ids or marks of turn {leaf.turn} in the evidence are not those that were committed",
        records.tokens_digest(ids, sources, fresh),
        turn.end.tokens_digest,
        hint=_CHANGED,
    )
    _check_ids(f"a token id of turn {leaf.turn}", max(ids, default=-1), vocabulary)
    check_marks(turn.span, [(source, *step) for source, step in zip(sources, turn.tokens.steps(fresh), strict=True)])


def _check_ids(what: str, largest: int, vocabulary: int) -> None:
    if largest >= vocabulary:
        raise VerificationError(what, code="record-invalid", expected=f"ids below {vocabulary}", found=largest)


def _same(code: str, what: str, found: bytes | str | int, expected: bytes | str | int, hint: str | None = None) -> None:
    """Raise VerificationError unless what was found is what was expected; bytes are shown in hexadecimal."""
    if found != expected:
        expected, found = (value.hex() if isinstance(value, bytes) else value for value in (expected, found))
        raise VerificationError(what, code=code, expected=expected, found=found, hint=hint)
