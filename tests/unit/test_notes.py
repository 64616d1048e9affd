"""The C2SP text formats that carry a log's head: notes, checkpoints, cosignatures, proofs, witness requests."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import mldsa

from tests.logs import open_note
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog import witness
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import ML_DSA_44, Cosignature, CosignerKey, cosign, subtree_message, witness_key
from verifiable.tlog.merkle import EMPTY_ROOT, Tree, leaf_hash
from verifiable.tlog.note import Ed25519Verifier, Note, Signature, sign_note, sign_text
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey, PublicKey

LOG = PrivateKey("log.example", bytes(32))
OTHER = PrivateKey("other.example", bytes(31) + b"\1")
WITNESS = PrivateKey("witness.example", bytes(31) + b"\2")
TREE = Tree.from_leaves(leaf_hash(bytes([index])) for index in range(9))
TIME = 1_767_139_200


def head(size: int, origin: str = "log.example") -> Checkpoint:
    return Checkpoint(origin, size, TREE.root(size))


def code_of(action, *arguments, **keywords) -> str:
    with pytest.raises(VerificationError) as caught:
        action(*arguments, **keywords)
    return caught.value.code


class TestNote:
    def test_text_may_have_blank_lines(self):
        note = sign_note("a\n\nb\n", LOG, OTHER)
        opened = open_note(note, [Ed25519Verifier(LOG.public)])
        assert opened.text == "a\n\nb\n"
        assert [line.name for line in opened.verified] == ["log.example"]
        assert [line.name for line in opened.unverified] == ["other.example"]

    def test_a_known_key_must_verify_even_beside_a_good_one(self):
        forged = Signature("log.example", sign_text("x\n", LOG).key_id, bytes(64))
        note = Note.parse(sign_note("x\n", OTHER)).add(forged).format()
        verifiers = [Ed25519Verifier(LOG.public), Ed25519Verifier(OTHER.public)]
        assert code_of(open_note, note, verifiers) == "bad-signature"

    def test_a_second_signature_of_one_key(self):
        line = sign_text("x\n", LOG)
        verifiers = [Ed25519Verifier(LOG.public)]
        opened = open_note(Note("x\n", (line, line)).format(), verifiers)
        assert (opened.verified, opened.unverified) == ((line,), ())
        forged = Signature(line.name, line.key_id, bytes(64))
        for lines in ((line, forged), (forged, line)):
            assert code_of(open_note, Note("x\n", lines).format(), verifiers) == "bad-signature"

    def test_trusted_keys_that_cannot_be_told_apart(self):
        class Collision(Ed25519Verifier):
            key_id = sign_text("x\n", LOG).key_id

        collision = Collision(PublicKey(LOG.name, OTHER.public.raw))
        with pytest.raises(MalformedError, match="trusted note keys"):
            open_note(sign_note("x\n", LOG), [Ed25519Verifier(LOG.public), collision])

    def test_the_same_name_or_id_alone_is_another_key(self):
        line = sign_text("x\n", LOG)
        for stranger in (
            Signature("elsewhere.example", line.key_id, line.signature),
            Signature(line.name, bytes(4), line.signature),
        ):
            note = Note("x\n", (stranger,)).format()
            assert code_of(open_note, note, [Ed25519Verifier(LOG.public)]) == "untrusted-key"

    @pytest.mark.parametrize("text", ["", "no newline", "tab\t\n", "\x7f\r\n", "\ud800\n"])
    def test_texts_that_are_not_signed(self, text: str):
        with pytest.raises(MalformedError):
            sign_note(text, LOG)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda note: note.replace("\n\n", "\n"),
            lambda note: note[:-1],
            lambda note: note + "\n",
            lambda note: note.replace("— ", "- "),
            lambda note: note.replace("— log", "—  log"),
            lambda note: note.replace("=\n", "\n"),
            lambda note: note.replace("\n\n", "\r\n\r\n"),
            lambda note: note[: note.index("log.example ") + 12] + "AAAAAA==\n",
        ],
    )
    def test_other_spellings_are_malformed(self, damage):
        note = sign_note("x\n", LOG).decode()
        assert damage(note) != note
        with pytest.raises(MalformedError):
            Note.parse(damage(note).encode())

    def test_limits(self):
        line = sign_text("x\n", OTHER)
        assert len(Note.parse(Note("x\n", (line,) * 100).format()).signatures) == 100
        with pytest.raises(MalformedError, match="100 signatures"):
            Note.parse(Note("x\n", (line,) * 101).format())
        with pytest.raises(MalformedError, match="1000000 bytes"):
            Note.parse(bytes(1_000_001))


class TestCheckpoint:
    def test_text(self):
        assert head(0).text() == "log.example\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
        longer = Checkpoint("log.example", 1, EMPTY_ROOT, ("one", "two words"))
        assert Checkpoint.parse(longer.text()) == longer

    @pytest.mark.parametrize(
        "size", ["", "+1", "01", "-1", " 1", "1 ", "1e3", "0x1", "١", "1_0", "9223372036854775808", "9" * 5000]
    )
    def test_sizes(self, size: str):
        with pytest.raises(MalformedError, match="tree size"):
            Checkpoint.parse(f"log.example\n{size}\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n")

    @pytest.mark.parametrize(
        "text",
        [
            "log.example\n1\n",
            "\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n",
            "log.example\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "log.example\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n",
            "log.example\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFV=\n",
            "log.example\n1\n47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=\n",
            "log.example\n1\nAA==\n",
        ],
    )
    def test_malformed(self, text: str):
        with pytest.raises(MalformedError):
            Checkpoint.parse(text)

    def test_what_cannot_be_a_checkpoint(self):
        for arguments in (("", 0, EMPTY_ROOT), ("a\nb", 0, EMPTY_ROOT), ("a", -1, EMPTY_ROOT), ("a", 0, b"")):
            with pytest.raises(MalformedError):
                Checkpoint(*arguments)
        with pytest.raises(MalformedError, match="key's name"):
            sign_checkpoint(head(3), OTHER)

    def test_opening(self):
        signed = open_checkpoint(sign_checkpoint(head(5), LOG), LOG.public)
        assert (signed.checkpoint, signed.witnesses) == (head(5), ())
        assert code_of(open_checkpoint, sign_checkpoint(head(5), LOG), OTHER.public) == "untrusted-key"

    def test_a_key_of_the_right_name_for_another_origin(self):
        note = sign_note(head(5, "elsewhere.example").text(), LOG)
        assert code_of(open_checkpoint, note, LOG.public) == "wrong-origin"

    def test_a_quorum_of_witnesses(self):
        note = Note.parse(sign_checkpoint(head(5), LOG)).add(cosign(head(5).text(), WITNESS, TIME))
        keys = [witness_key(WITNESS.public), witness_key(OTHER.public)]
        signed = open_checkpoint(note.format(), LOG.public, keys, quorum=1)
        assert signed.witnesses == ("witness.example",)
        made = signed.note.signatures[-1]
        assert Cosignature.parse(keys[0].kind, made.signature).timestamp == TIME
        assert code_of(open_checkpoint, note.format(), LOG.public, keys, quorum=2) == "too-few-witnesses"
        # One witness listed twice is one witness.
        assert code_of(open_checkpoint, note.format(), LOG.public, keys[:1], quorum=2) == "too-few-witnesses"

    def test_two_keys_of_one_witness_are_one_witness(self):
        second = PrivateKey(WITNESS.name, bytes(31) + b"\3")
        lines = [cosign(head(5).text(), key, TIME) for key in (WITNESS, second)]
        note = Note.parse(sign_checkpoint(head(5), LOG)).add(*lines).format()
        keys = [witness_key(key.public) for key in (WITNESS, second)]
        assert open_checkpoint(note, LOG.public, keys, quorum=1).witnesses == (WITNESS.name,)
        assert code_of(open_checkpoint, note, LOG.public, keys, quorum=2) == "too-few-witnesses"

    def test_cosignatures_alone_are_no_checkpoint(self):
        note = Note(head(5).text(), (cosign(head(5).text(), WITNESS, TIME),)).format()
        keys = [witness_key(WITNESS.public)]
        assert code_of(open_checkpoint, note, LOG.public, keys, quorum=1) == "untrusted-key"


class TestCosignature:
    def test_the_time_is_signed(self):
        key = witness_key(WITNESS.public)
        line = cosign(head(5).text(), WITNESS, TIME)
        key.verify_note(head(5).text(), line.signature)
        later = (TIME + 1).to_bytes(8, "big") + line.signature[8:]
        assert code_of(key.verify_note, head(5).text(), later) == "bad-signature"
        assert code_of(key.verify_note, head(6).text(), line.signature) == "bad-signature"
        assert code_of(key.verify_note, head(5).text(), line.signature[:-1]) == "bad-signature"

    def test_a_log_signature_is_no_cosignature(self):
        """One key in both roles has two IDs and two messages."""
        text = head(5).text()
        assert sign_text(text, WITNESS).key_id != cosign(text, WITNESS, TIME).key_id
        with pytest.raises(MalformedError, match="type"):
            CosignerKey.parse(WITNESS.public.vkey())
        with pytest.raises(MalformedError, match="type"):
            PublicKey.parse(witness_key(WITNESS.public).vkey())

    @pytest.mark.parametrize("timestamp", [-1, 2**63])
    def test_times(self, timestamp: int):
        with pytest.raises(MalformedError, match="timestamp"):
            cosign(head(5).text(), WITNESS, timestamp)

    def test_late_times_are_refused(self):
        with pytest.raises(MalformedError, match="timestamp"):
            Cosignature.parse(4, b"\x80" + bytes(71))

    def test_only_checkpoints_are_cosigned(self):
        with pytest.raises(MalformedError):
            cosign("anything\n", WITNESS, TIME)

    def test_ml_dsa_44(self):
        private = mldsa.MLDSA44PrivateKey.from_seed_bytes(bytes(32))
        raw = private.public_key().public_bytes_raw()

        def verify(key: bytes, message: bytes, signature: bytes) -> bool:
            try:
                mldsa.MLDSA44PublicKey.from_public_bytes(key).verify(signature, message)
            except InvalidSignature:
                return False
            return True

        key = CosignerKey("pq.example", ML_DSA_44, raw, verify)
        # The structure of the specification, spelt out.
        root = TREE.root(5)
        message = b"subtree/v1\n\0\x0apq.example" + TIME.to_bytes(8, "big") + b"\x0blog.example"
        message += bytes(8) + (5).to_bytes(8, "big") + root
        assert subtree_message("pq.example", TIME, "log.example", 0, 5, root) == message
        signature = TIME.to_bytes(8, "big") + private.sign(message)
        line = Signature("pq.example", key.key_id, signature)
        note = Note.parse(sign_checkpoint(head(5), LOG)).add(line).format()
        assert open_checkpoint(note, LOG.public, [key], quorum=1).witnesses == ("pq.example",)
        assert code_of(key.verify_note, head(6).text(), signature) == "bad-signature"

        # Without the algorithm such a witness is refused, not passed over; and its key is still read.
        unable = CosignerKey.parse(key.vkey())
        assert unable == key
        assert code_of(open_checkpoint, note, LOG.public, [unable]) == "unsupported-algorithm"

    @pytest.mark.parametrize(("kind", "size"), [(4, 31), (6, 32), (1, 32), (5, 32)])
    def test_keys(self, kind: int, size: int):
        with pytest.raises(MalformedError):
            CosignerKey("a", kind, bytes(size))


class TestTlogProof:
    proof = TlogProof(3, tuple(TREE.inclusion_proof(3)), sign_checkpoint(head(9), LOG))

    def test_verify(self):
        parsed = TlogProof.parse(self.proof.format())
        assert parsed.verify(bytes([3]), LOG.public).checkpoint == head(9)
        assert code_of(parsed.verify, bytes([4]), LOG.public) == "bad-inclusion-proof"
        assert code_of(parsed.verify, bytes([3]), OTHER.public) == "untrusted-key"

    def test_extra(self):
        proof = TlogProof(0, (), b"checkpoint\n", b"extra information")
        text = "c2sp.org/tlog-proof@v1\nextra ZXh0cmEgaW5mb3JtYXRpb24=\nindex 0\n\ncheckpoint\n"
        assert proof.format().decode() == text
        assert TlogProof.parse(text.encode()) == proof

    @pytest.mark.parametrize(
        "text",
        [
            "c2sp.org/tlog-proof@v2\nindex 0\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nindex 00\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nindex -1\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nindex 0\nextra AA==\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nextra !\nindex 0\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nindex 0\nAA==\n\ncheckpoint\n",
            "c2sp.org/tlog-proof@v1\nindex 0\n",
            "c2sp.org/tlog-proof@v1\nindex 0\n" + 64 * "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n" + "\nx\n",
            "",
        ],
    )
    def test_malformed(self, text: str):
        with pytest.raises(MalformedError):
            TlogProof.parse(text.encode())


class TestWitness:
    def consider(self, old: int, new: Checkpoint, seen: int | None, proof: list[bytes] | None = None) -> Checkpoint:
        path = TREE.consistency_proof(old, new.size) if proof is None else proof
        request = witness.AddCheckpoint(old, tuple(path), sign_checkpoint(new, LOG))
        remembered = {} if seen is None else {new.origin: witness.Cosigned(seen, TREE.root(seen))}
        return witness.consider(witness.AddCheckpoint.parse(request.format()), {LOG.name: LOG.public}, remembered)

    def test_growth(self):
        assert self.consider(0, head(4), None) == head(4)
        assert self.consider(4, head(9), 4) == head(9)
        assert self.consider(9, head(9), 9) == head(9)
        assert self.consider(0, head(0), None) == head(0)

    def test_refusals(self):
        assert code_of(self.consider, 4, head(9), 5) == "stale-size"
        assert code_of(self.consider, 4, head(9), None) == "stale-size"
        assert code_of(self.consider, 4, head(9), 4, [bytes(32)]) == "bad-consistency-proof"
        assert code_of(self.consider, 0, head(4), None, [bytes(32)]) == "bad-consistency-proof"
        assert code_of(self.consider, 4, Checkpoint("log.example", 4, bytes(32)), 4, []) == "two-roots"
        with pytest.raises(MalformedError, match="old size"):
            self.consider(9, head(4), 9, [])

    def test_the_size_to_start_from(self):
        with pytest.raises(VerificationError) as caught:
            self.consider(4, head(9), 5)
        assert (witness.status(caught.value), witness.conflict_body(caught.value)) == (409, b"5\n")

    def test_a_log_that_is_not_served(self):
        request = witness.AddCheckpoint(0, (), sign_checkpoint(head(4), LOG))
        assert code_of(witness.consider, request, {}, {}) == "unknown-log"
        assert code_of(witness.consider, request, {LOG.name: OTHER.public}, {}) == "untrusted-key"

    @pytest.mark.parametrize("body", ["", "old 0\n", "old 00\n\nx", "old 1\nx\n\nx", "new 0\n\nx"])
    def test_malformed(self, body: str):
        with pytest.raises(MalformedError) as caught:
            witness.AddCheckpoint.parse(body.encode())
        assert witness.status(caught.value) == 400
