"""Auditor keys: bearer tokens that the operator issues and revokes. Only their hashes are kept.

The register is a text file, a line for each key: `name hash issued [revoked]`, the hash being SHA-256 of the token in
hexadecimal and the times seconds since 1970. A running provider sees a change at the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, replace
from pathlib import Path

from verifiable import files
from verifiable.errors import PolicyError, StoreError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_LINE = re.compile(r"(\S+) ([0-9a-f]{64}) (0|[1-9][0-9]{0,11})(?: (0|[1-9][0-9]{0,11}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class AuditorKey:
    """One line of the register."""

    name: str
    digest: str
    issued: int
    revoked: int | None = None

    def line(self) -> str:
        end = "" if self.revoked is None else f" {self.revoked}"
        return f"{self.name} {self.digest} {self.issued}{end}"


class Auditors:
    """The register in a file. A missing file holds no key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[AuditorKey, ...] = ()

    def issued(self) -> tuple[AuditorKey, ...]:
        """Every key ever issued, as the file has them now. Raises StoreError where it is damaged."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StoreError(f"the register of auditor keys {self._path} can't be read", found=str(error)) from error
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            self._keys, self._seen = self._load(), seen
        return self._keys

    def allows(self, token: str) -> bool:
        """Whether a token is an auditor key that was not revoked. The time taken does not depend on the token."""
        digest = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
        matches = [hmac.compare_digest(key.digest, digest) and key.revoked is None for key in self.issued()]
        return any(matches)

    def register(self, name: str, token: str, now: int) -> None:
        """Add a key, issued `now` (seconds since 1970). Raises PolicyError for a name that is taken or not a name."""
        if not _NAME.fullmatch(name):
            raise PolicyError("the name of an auditor key", expected="letters, digits and . _ @ -", found=name)
        keys = self.issued()
        if any(key.name == name for key in keys):
            raise PolicyError("an auditor key of this name exists", found=name, hint="Names are used once, ever.")
        digest = hashlib.sha256(token.encode()).hexdigest()
        self._save((*keys, AuditorKey(name, digest, now)))

    def revoke(self, name: str, now: int) -> None:
        """Revoke a key for good, `now` (seconds since 1970). Raises PolicyError where there is none of this name."""
        keys = self.issued()
        if not any(key.name == name and key.revoked is None for key in keys):
            raise PolicyError(
                "no auditor key of this name is in force", found=name, hint="`verifiable auditors list` shows them."
            )
        self._save(tuple(replace(key, revoked=now) if key.name == name else key for key in keys))

    def _load(self) -> tuple[AuditorKey, ...]:
        try:
            lines = self._path.read_text("ascii").splitlines()
        except (OSError, UnicodeError) as error:
            raise StoreError(f"the register of auditor keys {self._path} can't be read", found=str(error)) from error
        keys = []
        for number, line in enumerate(lines, 1):
            match = _LINE.fullmatch(line)
            if match is None or not _NAME.fullmatch(match[1]):
                raise StoreError(f"line {number} of {self._path} is damaged", hint="Restore it from your backup.")
            keys.append(AuditorKey(match[1], match[2], int(match[3]), None if match[4] is None else int(match[4])))
        return tuple(keys)

    def _save(self, keys: tuple[AuditorKey, ...]) -> None:
        for key in keys:
            if not _LINE.fullmatch(key.line()):  # written, it would lock every auditor out
                found = key.issued if key.revoked is None else key.revoked
                raise PolicyError("the time of an auditor key", expected="seconds since 1970", found=found)
        try:
            files.replace(self._path, "".join(f"{key.line()}\n" for key in keys).encode("ascii"), 0o600)
        except OSError as error:
            raise StoreError(f"the register of auditor keys {self._path} can't be written", found=str(error)) from error
