"""The chain of a provider's keys, with what it serves of them itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from verifiable.errors import VerificationError
from verifiable.manifest.chain import Chain
from verifiable.wire.keys import PublicKey
from verifier.provider.client import Client


def fetch_chain(client: Client, trust: Sequence[PublicKey], statements: Iterable[bytes] = ()) -> Chain:
    """What follows from the keys that the user trusts, by the statements at hand and those that the provider serves.

    A provider that serves none is no error. One that can't be asked, or serves something else, is met again by whoever
    asks it for more; then a key that the chain does not reach says that there was none.
    """
    known = tuple(statements)
    try:
        return Chain.follow(trust, (*known, *client.keys().statements))
    except VerificationError as error:
        chain = Chain.follow(trust, known)
        return chain if error.code == "no-evidence" else replace(chain, ignored=(*chain.ignored, error.statement))
