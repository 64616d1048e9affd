"""The protocol's limits and ranges, once for all: request, engine, leaf, manifest, receipt, evidence, client, page.

What an engine serves within them, every reader reads. Ranges include their ends. `_BYTES` counts bytes (of text: its
UTF-8), `_CHARACTERS` code points; the rest are counts. The browser's verifier gets the same names as `LIMITS`
(`spec.browser.build`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

U31: Final = 2**31 - 1
"""Token ids, positions and counts of tokens."""
U32: Final = 2**32 - 1
"""Numbers of turns."""
U63: Final = 2**63 - 1
"""Times, sizes and sequence numbers: what a signed column of a database holds."""

# Deterministic CBOR, where nothing else is said.
CBOR_BYTES: Final = 1 << 24
CBOR_DEPTH: Final = 16
CBOR_ITEMS: Final = 1 << 20

# Requests.
REQUEST_BYTES: Final = 1 << 24
"""A request's body, and its canonical form."""
JSON_DEPTH: Final = 64
"""Levels of arrays and objects in a body, itself included; the same for everybody, whatever their JSON parser."""
JSON_NUMBER: Final = 2**53 - 1
"""Magnitude of a number. RFC 8785 writes 1e20 as digits, and past this not every reader has them all."""
TEMPERATURE: Final = (0.01, 100.0)
"""Below it only 0 is taken, which always draws the best."""
BIAS: Final = (-100.0, 100.0)
BIASES: Final = 1024
LOGPROBS: Final = 20
"""OpenAI's bound for `top_logprobs`."""
NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, TEMPERATURE[1]),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repeat_penalty": (0.01, 100.0),
}
INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "max_tokens": (1, U31),
    "max_completion_tokens": (1, U31),
    "top_k": (-1, U31),
    "repeat_last_n": (-1, U31),
    "seed": (-JSON_NUMBER, JSON_NUMBER),
    "logprobs": (0, LOGPROBS),
    "top_logprobs": (0, LOGPROBS),
}
"""The ranges of a request's numbers; the provider's OpenAPI document says the same."""
NAME_CHARACTERS: Final = 256
"""A model's or a tool's name, or the id of a call."""
STOPS: Final = 16
STOP_CHARACTERS: Final = 256
TOOLS: Final = 128
"""OpenAI's bound; of the calls in one message too."""
FORM: Final = 1 << 16
"""Characters of a grammar, bytes of a schema."""
NONCE_BYTES: Final = (8, 64)

# Records and leaves.
ENTRIES: Final = 128
"""Of a record: the largest k."""
ANSWER_TOKENS: Final = 1 << 17
"""Of one turn."""
LEAF_BYTES: Final = 1 << 14
"""The largest is a turn's with as many biases as there may be."""
RECORD_BYTES: Final = 96
"""An opened record, besides 8 bytes for each of its entries."""

# Manifests.
PROVIDER_BYTES: Final = 256
FILES: Final = 1024
FILE_NAME_BYTES: Final = 255
ARCHITECTURE_BYTES: Final = 128
ADAPTERS: Final = 16
SCALE: Final = (1e-4, 1e4)
"""Magnitude of an adapter's scale."""
SUPPRESSED: Final = 1 << 16
BUILD_BYTES: Final = 1024
SYSTEM_BYTES: Final = 4096
CACHE_TYPE_BYTES: Final = 32
DEVICE_BYTES: Final = 256
SCALING_BYTES: Final = 16
LIBRARIES: Final = 32
LIBRARY_BYTES: Final = 64
COMPILER_BYTES: Final = 256
ROPE: Final[Mapping[str, tuple[float, float]]] = {
    "freq_base": (1.0, 1e12),
    "freq_scale": (1e-4, 1e4),
    "yarn_ext_factor": (0.0, 100.0),
    "yarn_attn_factor": (0.0, 100.0),
    "yarn_beta_fast": (0.0, 10_000.0),
    "yarn_beta_slow": (0.0, 10_000.0),
}
DRAFTERS: Final = 16
DRAFTER_BYTES: Final = 64
SESSION_KEYS: Final = 64
KEY_NAME_BYTES: Final = 256
KEY_BYTES: Final = 512
"""A verifier key."""
TYPE_BYTES: Final = 128
"""The type of a signed object."""
SIGNED_BYTES: Final = 1 << 20
"""A signed manifest or head."""

# Statements on keys.
KEYS_BYTES: Final = 1 << 20
"""A keys file."""
KEY_STATEMENTS: Final = 256
"""In a keys file."""
REASON_BYTES: Final = 256
"""Of a revocation."""

# Verdict statements.
VERDICT_CODES: Final = 64
"""Reason codes in one; of model hashes and of manifest digests as many."""
URL_BYTES: Final = 1024
REPORTS_BYTES: Final = 1 << 24
"""A page of a log's verdicts with their proofs."""

# Files that people hand around.
SEALED_ITEMS: Final = (1 << 12, 1 << 22)
"""Items of CBOR in such a file: a quarter of its bytes, within this range."""
RECEIPT_BYTES: Final = 1 << 22
"""Head, manifest, what is shown of the session, and a log proof."""
EVIDENCE_BYTES: Final = 1 << 28
"""What a receipt may have, and the session's content."""
EXCHANGE_BYTES: Final = 1 << 28
EARLIEST_MS: Final = 10**11
"""A client's time below it is in seconds, not in milliseconds: by then it would be 1973."""
CLOCK_SKEW: Final = 5 * 60 * 1000
"""Milliseconds by which the clocks of a client and its provider may be apart."""
FRAUD_BYTES: Final = 1 << 26
FRAUD_ENTRIES: Final = 1 << 17
"""Entries of a provider's log in a fraud file."""
MERGE_DELAY: Final = 2 * 24 * 3600 * 1000
"""Milliseconds from a head's time within which it stands in its provider's log, where nothing else was agreed. No head
there is older by so much than a head before it."""
LOG_ENTRIES: Final = 1 << 20
"""Entries of a provider's log that an auditor reads, where the provider does not prove what it holds."""
LOG_BYTES: Final = 1 << 29
"""Bytes of these entries."""

# A session: a turn that could pass one of these is not begun.
SESSION_TURNS: Final = 1 << 12
SESSION_LEAVES: Final = 1 << 20
SESSION_SHOWN_BYTES: Final = 1 << 21
"""Its leaves that are no tokens, and the hashes between them: what each receipt repeats."""
SESSION_CONTENT_BYTES: Final = EVIDENCE_BYTES - RECEIPT_BYTES
"""Its requests and its records."""

# Logs (C2SP).
NOTE_BYTES: Final = 1_000_000
NOTE_SIGNATURES: Final = 100
PROOF_HASHES: Final = 63
ENTRY_BYTES: Final = 0xFFFF

# What a provider's API gives at once.
LISTED: Final = 1000
"""Sessions on a page of the list."""
PAGES: Final = 1000
LISTING_BYTES: Final = 1 << 22
ASKED: Final = SESSION_TURNS
"""Turns, or positions, that one may ask for."""
