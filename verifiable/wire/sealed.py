"""Files of this project that are handed around: a CBOR map whose last value is a checksum of everything before it.

The checksum proves nothing about who made the file (signatures inside do that). It tells a damaged file from a
dishonest provider, also where a byte is bound by nothing else: a capability, or token ids that only a model can check.
"""

from __future__ import annotations

import hashlib

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.wire import encoding
from verifiable.wire.encoding import Bounds, Map

DIGEST_BYTES = 32


def seal(fields: Map, maximum: int | None = None) -> bytes:
    """Encode `fields` with a checksum under the next higher key: SHA-256 of all bytes before its own value.

    Raises PolicyError where that is more than `maximum` bytes: better no file than one that nobody reads.
    """
    last = max(key for key in fields if isinstance(key, int)) + 1
    body = encoding.encode({**fields, last: bytes(DIGEST_BYTES)})[:-DIGEST_BYTES]
    size = len(body) + DIGEST_BYTES
    if maximum is not None and size > maximum:
        hint = "Ask for less at once: for fewer turns, or for single records."
        raise PolicyError("a file too long to be read", expected=f"at most {maximum} bytes", found=size, hint=hint)
    return body + hashlib.sha256(body).digest()


def unseal(data: bytes, count: int, what: str, maximum: int) -> Map:
    """Read what `seal` wrote with keys 1 to `count`, the first the version; at most `maximum` bytes.

    Raises MalformedError or NewerVersionError.
    """
    if len(data) > maximum:
        raise MalformedError(what, expected=f"at most {maximum} bytes", found=f"{len(data)} bytes")
    fewest, most = limits.SEALED_ITEMS
    # An item takes a byte at least, and Python some fifty: bound the count well below the bytes.
    bounds = Bounds(size=maximum, items=max(fewest, min(len(data) // 4, most)))
    fields = encoding.decode(data, bounds)
    last = next(reversed(fields.values()), None) if isinstance(fields, dict) else fields
    encoding.bytes_(last, f"{what} checksum", DIGEST_BYTES)
    checksum = hashlib.sha256(data[:-DIGEST_BYTES]).digest()
    if checksum != data[-DIGEST_BYTES:]:
        raise MalformedError(
            f"{what}: its checksum does not fit its bytes",
            expected=data[-DIGEST_BYTES:].hex(),
            found=checksum.hex(),
            hint="The file was damaged or edited after it was written. Get it again.",
        )
    return encoding.versioned(fields, range(1, count + 2), what)
