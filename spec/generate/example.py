"""The example at the head of spec/protocol.md: a request, a receipt and a record, byte for byte."""

from __future__ import annotations

from spec.generate.receipts import turn_of
from spec.generate.world import PROVIDER, Story, asked
from verifiable.errors import MalformedError
from verifiable.session.evidence import Kind
from verifiable.session.records import Token
from verifiable.wire import encoding
from verifiable.wire.encoding import Tagged

BEGIN = "<!-- example: written by python -m spec.make_vectors -->\n"
END = "<!-- end of example -->\n"
WIDTH = 96
_EMBEDDED = 24
"""Byte strings at least this long are shown as the CBOR that they hold, where they hold some."""


def diagnostic(value: object, indent: int = 0) -> str:
    """A value in the diagnostic notation of RFC 8949 §8, broken into lines where it is long."""
    if isinstance(value, bytes):
        embedded = _embedded(value)
        return f"h'{value.hex()}'" if embedded is None else f"<< {diagnostic(embedded, indent + 3)} >>"
    if isinstance(value, list):
        return _laid_out("[", [diagnostic(item, indent + 2) for item in value], "]", indent)
    if isinstance(value, dict):
        items = [f"{diagnostic(key)}: {diagnostic(item, indent + 2)}" for key, item in value.items()]
        return _laid_out("{", items, "}", indent)
    if isinstance(value, Tagged):
        return f"{value.tag}({diagnostic(value.value, indent)})"
    if isinstance(value, str):
        return f'"{value}"'
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _laid_out(opening: str, items: list[str], closing: str, indent: int) -> str:
    line = f"{opening}{', '.join(items)}{closing}"
    if len(line) + indent <= WIDTH and "\n" not in line:
        return line
    inner = "\n" + " " * (indent + 2)
    return opening + inner + f",{inner}".join(items) + "\n" + " " * indent + closing


def _embedded(data: bytes) -> encoding.Value:
    if len(data) < _EMBEDDED:
        return None
    try:
        value = encoding.decode(data, tags=frozenset({18}))
    except MalformedError:
        return None
    return value if isinstance(value, (list, dict, Tagged)) else None


def example() -> str:
    story = Story.open("one").turn(asked(max_tokens=20), 5).close()
    request = story.requests[0]
    receipt = story.receipt()
    token = story.leaves[story.where(Token)]
    key = turn_of(story).key()
    evidence = story.evidence(Kind.FULL)
    return f"""A client asked, and brought a nonce. The request in its canonical form ([§8](#8-requests)):

```json
{request.canonical.decode()}
```

Its SHA-256 is `{request.digest().hex()}`.
The provider answered "{story.texts[0]}" in {len(story.tokens())} tokens, and gave this receipt
([§7.1](#71-receipt)), {len(receipt.encode()):,} bytes, here in diagnostic notation:

```cbor-diag
{diagnostic(encoding.decode(receipt.encode()))}
```

The provider's verifier key, which the client must have from elsewhere, is
`{PROVIDER.public.vkey()}`.

Evidence of kind `full` for the same session ({len(evidence.encode()):,} bytes) also has the record of each token. This
is leaf {token.seq}, the first token:

```cbor-diag
{diagnostic(encoding.decode(token.encode()))}
```

The turn's sampling key ([§9.1](#91-the-turns-key)) is `{key.hex()}`.
"""


def insert(text: str) -> str:
    """The page with its example made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("spec/protocol.md has lost the marks around its example")
    return before + begin + "\n" + example() + "\n" + end + after
