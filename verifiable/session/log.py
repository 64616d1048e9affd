"""A session's log as it is written, a state machine: leaves in the only order that is allowed, and the tree over them.

Pure: identifiers, secrets and times are arguments. What an auditor expects of a finished log: `structure`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from verifiable.errors import EngineError
from verifiable.sampling.logits import Entries
from verifiable.session.head import Head
from verifiable.session.records import (
    Close,
    End,
    Finish,
    Leaf,
    Open,
    Source,
    Token,
    Turn,
    TurnFacts,
    encode_token,
    parse,
    salt,
    token_bytes,
    turn_secret,
)
from verifiable.tlog.merkle import Tree, leaf_hash


class SessionLog:
    """One session's append-only log. Each method appends one leaf and returns its bytes; out of order raises
    EngineError. `landmarks` are the leaves that are not tokens, by index; `requests` counts the bytes of
    the turns' canonical requests, for `room`; whoever keeps them counts.
    """

    def __init__(self, session: bytes, secret: bytes, manifest_digest: bytes) -> None:
        self.session = session
        self.manifest_digest = manifest_digest
        self.tree = Tree()
        self.turns = 0
        self.completion = 0
        self.landmarks: dict[int, bytes] = {}
        self.requests = 0
        self.closed = False
        self._secret = secret
        self._facts: TurnFacts | None = None
        self._turn_secret = b""
        self._step = self._row = -1
        self._drafted = self._accepted = 0
        self._tokens = hashlib.sha256()

    @classmethod
    def restore(cls, secret: bytes, leaves: Iterable[Leaf]) -> SessionLog:
        """Rebuild a log from its stored leaves, all of them, whatever state a crash left it in."""
        ordered = list(leaves)
        if not ordered or not isinstance(ordered[0], Open):
            raise EngineError("restoring a session", expected="its open leaf first", found="something else")
        log = cls(ordered[0].session, secret, ordered[0].manifest_digest)
        for leaf in ordered:
            log._append(leaf)
            log.turns += isinstance(leaf, End)
            log.closed = isinstance(leaf, Close)
        return log

    @classmethod
    def resume(cls, secret: bytes, leaves: Iterable[Leaf]) -> SessionLog:
        """Rebuild the log of a session to go on with it. Raises EngineError where it stopped in mid-turn."""
        log = cls.restore(secret, leaves)
        if log.size - 1 not in log.landmarks or isinstance(parse(log.landmarks[log.size - 1]), Turn):
            raise EngineError("resuming a session", expected="a finished turn", found="a turn without its end")
        return log

    @property
    def size(self) -> int:
        return self.tree.size

    def open(self, time: int) -> bytes:
        self._expect(self.size == 0, "open")
        return self._append(Open(self.session, 0, salt(self._secret, 0), self.manifest_digest, time))

    def begin_turn(self, facts: TurnFacts) -> bytes:
        self._expect(self.size > 0 and self._facts is None and not self.closed, "turn")
        self._facts = facts
        self._turn_secret = turn_secret(self._secret, self.turns)
        self._step = self._row = -1
        self._drafted = self._accepted = self.completion = 0
        self._tokens = hashlib.sha256()
        return self._append(Turn(self.session, self.size, self._salt(), self.turns, *facts))

    def drafted(self, count: int) -> None:
        """Note that a step verified `count` drafted tokens; only the turn's end leaf shows the sum."""
        self._drafted += count

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> bytes:
        """Append a token's record. `new_step` is true for the first token that a decode step emits."""
        facts = self._facts
        if facts is None:
            raise _out_of_order("token")
        self._step, self._row = (self._step + 1, 0) if new_step else (self._step, self._row + 1)
        self._accepted += source is Source.DRAFT_ACCEPTED
        self._tokens.update(token_bytes(token, source, new_step))
        position = facts.prompt_count + self.completion
        self.completion += 1
        place = (self.session, self.size, self._salt())
        data = encode_token(*place, self.turns, position, token, source, self._step, self._row, entries)
        self.tree.append(leaf_hash(data))
        return data

    def end_turn(self, finish: Finish, text_digest: bytes) -> bytes:
        facts = self._facts
        if facts is None:
            raise _out_of_order("end")
        leaf = End(
            self.session,
            self.size,
            self._salt(),
            turn=self.turns,
            finish=finish,
            prompt_count=facts.prompt_count,
            completion_count=self.completion,
            text_digest=text_digest,
            tokens_digest=self._tokens.digest(),
            drafted=self._drafted,
            accepted=self._accepted,
        )
        self._facts = None
        self.turns += 1
        return self._append(leaf)

    def close(self) -> bytes:
        self._expect(self.size > 0 and self._facts is None and not self.closed, "close")
        self.closed = True
        return self._append(Close(self.session, self.size, salt(self._secret, self.size), self.turns))

    def head(self, time: int, *, interim: bool = False) -> Head:
        """The head of the log as it stands, to be signed."""
        return Head(self.session, self.size, self.tree.root(), self.manifest_digest, time, interim)

    def _salt(self) -> bytes:
        return salt(self._turn_secret, self.size)

    def _append(self, leaf: Leaf) -> bytes:
        data = leaf.encode()
        index = self.tree.append(leaf_hash(data))
        if not isinstance(leaf, Token):
            self.landmarks[index] = data
        return data

    def _expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise _out_of_order(what)


def _out_of_order(what: str) -> EngineError:
    return EngineError(f"a session log can't take a leaf of kind '{what}' now", hint="This is a fault of the engine.")
