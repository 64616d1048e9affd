"""Vectors of the protocol's own objects, one by one: derivations, manifest, head, leaves, packed tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec.generate.cases import VectorFile
from spec.generate.world import (
    LOG_KEY,
    MANIFEST,
    NONCE,
    OTHER,
    VOCABULARY,
    K,
    Story,
    asked,
    digest,
    pack,
)
from verifiable import limits
from verifiable.manifest.manifest import ALL_LAYERS, LOG_PROBABILITIES, AdapterFile, Library, ModelFile, Rope
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.evidence import PackedTokens
from verifiable.session.records import NonceSource, Source
from verifiable.wire import encoding, keys
from verifiable.wire.encoding import Map, Value


def derivation() -> VectorFile:
    file = VectorFile(
        "derivation",
        "what: turn-secret (of the session's secret and a turn), salt (of a turn's or session's secret and a sequence "
        "number), reader-capability (of the owner's), prompt-digest, stop-digest, tokens-digest (ids, sources, first "
        "of a step), sampling-key (of a nonce's source, the nonce and a prompt digest), "
        "drawn-sessions (ids and weights, by lottery from a seed, lowest lot first), drawn-turns (ascending), or "
        "drawn-window (where a window of `length` of `tokens` tokens begins).",
    )
    secret = digest("a session's secret")
    for turn in (0, 1, 2**32 - 1):
        file.add(f"secret of turn {turn}", what="turn-secret", secret=secret.hex(), turn=turn)
    for seq in (0, 1, 255, 2**40):
        file.add(f"salt of leaf {seq}", what="salt", secret=secret.hex(), seq=seq)
    for name, owner in {"a capability": digest("an owner's capability"), "zeros": bytes(32)}.items():
        file.add(f"reader's capability, of {name}", what="reader-capability", owner=owner.hex())
    for name, ids in {"no ids": [], "ids": [1, 256, 49_151], "large ids": [2**31 - 1, 0]}.items():
        file.add(f"prompt of {name}", what="prompt-digest", ids=ids)
    for name, stops in {"no stops": [], "stops": ["\n", "</s>"], "letters of any script": ["水", "é"]}.items():
        file.add(f"digest of {name}", what="stop-digest", stops=stops)
    file.add("tokens: none", what="tokens-digest", ids=[], sources=[], fresh=[])
    file.add(
        "tokens: plain, two accepted, one corrected",
        what="tokens-digest",
        ids=[5, 6, 7, 70_000],
        sources=[0, 1, 1, 2],
        fresh=[True, True, False, False],
    )
    keys_of: tuple[tuple[str, NonceSource, bytes], ...] = (
        ("a client's nonce", NonceSource.CLIENT, NONCE),
        ("the same, of the provider's", NonceSource.PROVIDER, NONCE),
        ("seed -3", NonceSource.SEED, bytes.fromhex("fffffffffffffffd")),
        ("the same bytes as a client's nonce", NonceSource.CLIENT, bytes.fromhex("fffffffffffffffd")),
        ("64 bytes", NonceSource.CLIENT, bytes(64)),
    )
    for name, source, nonce in keys_of:
        file.add(
            f"sampling key: {name}",
            what="sampling-key",
            source=int(source),
            nonce=nonce.hex(),
            prompt_digest=digest("prompt").hex(),
        )
    seed, sessions = digest("seed"), [digest(f"session {number}")[:16] for number in range(6)]
    weights = (1, 5, 1, 200, 4096, 2**53 - 1)
    for count in (0, 1, 3, 9):
        file.add(
            f"{count} of 6 sessions",
            what="drawn-sessions",
            seed=seed.hex(),
            sessions=[[session.hex(), weight] for session, weight in zip(sessions, weights, strict=True)],
            count=count,
        )
        file.add(
            f"{count} of 7 turns",
            what="drawn-turns",
            seed=seed.hex(),
            session=sessions[0].hex(),
            turns=7,
            count=count,
        )
    for session, tokens, length in (
        (0, 96, 16),
        (1, 96, 16),
        (1, 96, 64),
        (2, 17, 16),
        (3, 16, 16),
        (4, 5, 16),
        (5, 0, 8),
    ):
        file.add(
            f"window of {length} of {tokens} tokens of session {session}",
            what="drawn-window",
            seed=seed.hex(),
            session=sessions[session].hex(),
            tokens=tokens,
            length=length,
        )
    file.add(
        "window of 1 of 2^40 tokens",
        what="drawn-window",
        seed=seed.hex(),
        session=sessions[0].hex(),
        tokens=2**40,
        length=1,
    )
    return file


def manifest() -> VectorFile:
    file = VectorFile("manifest", "input: the payload of a signed manifest.")

    def add(name: str, expected: str, payload: bytes) -> None:
        file.add(name, expected, input=payload.hex())

    honest = MANIFEST.payload()
    add("a manifest", "ok", honest)
    add("without a log", "ok", replace(MANIFEST, log=None).payload())
    more = replace(
        MANIFEST,
        model=replace(MANIFEST.model, files=(*MANIFEST.model.files, ModelFile("toy-2.gguf", digest("second"), 0))),
        session_keys=(*MANIFEST.session_keys, OTHER.public),
        drafters=(),
        k=128,
        value_kind=LOG_PROBABILITIES,
        defaults=SamplingDefaults(0.0, 1, 1.0, 0.0),
    )
    add("two files, two session keys, no drafters, greedy defaults", "ok", more.payload())
    names = ("n" * limits.FILE_NAME_BYTES, tuple("d" * limits.DRAFTER_BYTES for _ in range(limits.DRAFTERS)))
    longest = replace(MANIFEST.model, files=(replace(MANIFEST.model.files[0], name=names[0]),))
    add(
        "names as long and drafters as many as may be",
        "ok",
        replace(MANIFEST, model=longest, drafters=names[1]).payload(),
    )
    add("valid for one millisecond", "ok", replace(MANIFEST, valid_to=MANIFEST.valid_from).payload())
    _manifests_that_say_more(file)

    fields = encoding.map_(encoding.decode(honest), range(1, 13), "manifest")

    def changed(name: str, key: int, value: Any) -> None:
        add(name, "malformed", encoding.encode({**fields, key: value}))

    model, runtime, sampler = (encoding.array(fields[key], None, "field") for key in (5, 6, 8))
    changed("version 1", 1, 1)
    add("version 3", "newer-version", encoding.encode({**fields, 1: 3}))
    add("version 3, with a key more", "newer-version", encoding.encode({**fields, 1: 3, 99: 0}))
    add("sampler version 3", "newer-version", encoding.encode({**fields, 8: [3, sampler[1]]}))
    changed("version 2.0", 1, 2.0)
    changed("provider as bytes", 2, b"vectors.example")
    changed("provider of 257 bytes", 2, "p" * 257)
    changed("valid-from after valid-to", 3, MANIFEST.valid_to + 1)
    changed("a time below zero", 3, -1)
    changed("a time past 2^63 - 1", 4, 2**63)
    changed("a time as a float", 4, 1.5)
    changed("17 drafters", 9, ["d"] * 17)
    changed("a drafter's name of 65 bytes", 9, ["d" * 65])
    changed("a file's name of 256 bytes", 5, [[["n" * 256, bytes(32), 1]], *model[1:]])
    changed("no files", 5, [[], *model[1:]])
    changed("a file without its size", 5, [[["toy.gguf", bytes(32)]], *model[1:]])
    changed("a file hash of 31 bytes", 5, [[["toy.gguf", bytes(31), 1]], *model[1:]])
    changed("model of six fields", 5, model[:-1])
    changed("a model that says nothing more, in a map", 5, [*model, {}])
    changed("a model that says more in an array", 5, [*model, [[]]])
    changed("a model that says more under a third key", 5, [*model, {3: 0}])
    changed("a model with two maps", 5, [*model, {2: bytes(4)}, {2: bytes(4)}])
    file_of = ["a.gguf", bytes(32), 1]
    for name, adapters in (
        ("no adapters", []),
        ("17 adapters", [[*file_of, 1.0]] * 17),
        ("an adapter without a scale", [file_of]),
        ("an adapter's scale as an integer", [[*file_of, 1]]),
        ("an adapter's scale of 0", [[*file_of, 0.0]]),
        ("an adapter's scale under 0.0001", [[*file_of, -0.00001]]),
        ("an adapter's scale over 10000", [[*file_of, 10001.0]]),
        ("an infinite scale", [[*file_of, float("inf")]]),
        ("an adapter's hash of 33 bytes", [["a.gguf", bytes(33), 1, 1.0]]),
        ("adapters as a map", {0: [*file_of, 1.0]}),
    ):
        changed(name, 5, [*model, {1: adapters}])
    for name, suppressed in (
        ("no suppressed ids", b""),
        ("suppressed ids of six bytes", bytes(4) + b"\1\0"),
        ("a suppressed id twice", bytes(8)),
        ("suppressed ids in descending order", b"\2\0\0\0\1\0\0\0"),
        ("a suppressed id past the vocabulary", (500).to_bytes(4, "little")),
        ("all ids suppressed", b"".join(at.to_bytes(4, "little") for at in range(500))),
        ("suppressed ids as an array", [1, 2]),
    ):
        changed(name, 5, [*model, {2: suppressed}])
    changed("vocabulary past 2^31 - 1", 5, [*model[:4], 2**31, *model[5:]])
    changed("runtime of 15 fields", 6, runtime[:-1])
    changed("a runtime that says nothing more, in a map", 6, [*runtime, {}])
    changed("a runtime that says more in a text", 6, [*runtime, "CUDA0"])
    for name, key, value in (
        ("a device without a name", 1, ""),
        ("a device of 257 bytes", 1, "d" * 257),
        ("a device as bytes", 1, b"CUDA0"),
        ("a RoPE base as an integer", 2, 10_000),
        ("a RoPE base of 0", 2, 0.0),
        ("a RoPE base over 10^12", 2, 1e13),
        ("a RoPE scale of 0", 3, 0.0),
        ("a RoPE scale that is no number", 3, float("nan")),
        ("a RoPE scaling that does not exist", 4, "cubic"),
        ("a RoPE scaling by number", 4, 2),
        ("a YaRN factor of -1", 5, -1.0),
        ("a YaRN magnitude over 100", 6, 101.0),
        ("a YaRN correction below zero", 7, -0.5),
        ("a YaRN correction over 10000", 8, 10001.0),
        ("a YaRN context of 0", 9, 0),
        ("a YaRN context of 2^31", 9, 2**31),
        ("rows not in pairs, said outright", 10, False),
        ("rows in pairs as 1", 10, 1),
        ("no libraries", 11, []),
        ("libraries as a map", 11, {"libggml": bytes(32)}),
        ("33 libraries", 11, [[f"lib{at:02}", bytes(32)] for at in range(33)]),
        ("a library twice", 11, [["libggml", bytes(32)]] * 2),
        ("libraries in descending order", 11, [["libllama", bytes(32)], ["libggml", bytes(32)]]),
        ("a library's hash of 31 bytes", 11, [["libggml", bytes(31)]]),
        ("a library without a name", 11, [["", bytes(32)]]),
        ("a library's name of 65 bytes", 11, [["l" * 65, bytes(32)]]),
        ("a library's name with a space", 11, [["lib ggml", bytes(32)]]),
        ("a library's name with a newline", 11, [["libggml\n", bytes(32)]]),
        ("a compiler without a name", 12, ""),
        ("a compiler of 257 bytes", 12, "c" * 257),
        ("a compiler as bytes", 12, b"GCC"),
        ("a runtime's thirteenth key", 13, 0),
        ("a runtime's key as text", "device", "CUDA0"),
    ):
        changed(name, 6, [*runtime, {key: value}])
    changed("flash attention as 1", 6, [*runtime[:8], 1, *runtime[9:]])
    changed("fingerprint of 31 bytes", 6, [*runtime[:14], bytes(31), True])
    changed("k of 0", 7, [0, 0])
    changed("k of 129", 7, [129, 0])
    changed("value kind 2", 7, [K, 2])
    changed("sampler version 1", 8, [1, sampler[1]])
    changed("default temperature as an integer", 8, [2, {1: 1, 2: 6, 3: 0.95, 4: 0.02}])
    changed("default temperature of 101", 8, [2, {1: 101.0, 2: 6, 3: 0.95, 4: 0.02}])
    for tiny in (5e-324, 1e-5, 0.00999, -0.01):
        changed(f"default temperature of {tiny:g}", 8, [2, {1: tiny, 2: 6, 3: 0.95, 4: 0.02}])
    changed("default temperature that is no number", 8, [2, {1: float("nan"), 2: 6, 3: 0.95, 4: 0.02}])
    changed("default top_k of 0", 8, [2, {1: 1.0, 2: 0, 3: 0.95, 4: 0.02}])
    changed("default top_p over 1", 8, [2, {1: 1.0, 2: 6, 3: 1.5, 4: 0.02}])
    changed("defaults with an unknown parameter", 8, [2, {1: 1.0, 2: 6, 3: 0.95, 4: 0.02, 5: 0.0}])
    changed("defaults as an array", 8, [2, [1.0, 6, 0.95, 0.02]])
    four: Map = {1: 1.0, 2: 6, 3: 0.95, 4: 0.02}
    by_default: tuple[tuple[str, int, Value], ...] = (
        ("a default repeat penalty of 1", 6, [1.0, 64]),
        ("a default repeat penalty over no tokens", 6, [1.1, 0]),
        ("a default repeat penalty alone", 6, 1.1),
        ("a default frequency penalty", 7, 0.5),
        ("default biases", 9, [[3, 1.0]]),
        ("end tokens banned by default", 10, True),
    )
    for name, key, default in by_default:
        changed(name, 8, [2, {**four, key: default}])
    changed("a drafter of 65 bytes", 9, ["d" * 65])
    changed("no session keys", 10, [])
    changed("a session key of small order", 10, [keys.join_vkey("s.example", 1, bytes.fromhex("01" + "00" * 31))])
    changed("a session key without its hash", 10, ["s.example"])
    changed("a log key as bytes", 11, LOG_KEY.public.raw)
    changed("request forms 1", 12, 1)
    changed("request forms as text", 12, "2")
    add("request forms 3", "newer-version", encoding.encode({**fields, 12: 3}))
    changed("a thirteenth key", 13, 0)
    for missing in (11, 12):
        kept = {key: value for key, value in fields.items() if key != missing}
        add(f"key {missing} missing", "malformed", encoding.encode(kept))
    add("an array", "malformed", encoding.encode([1, 2]))
    add("a byte after the end", "malformed", honest + b"\0")
    add("cut short", "malformed", honest[:-1])
    add("nothing", "malformed", b"")
    return file


def _manifests_that_say_more(file: VectorFile) -> None:
    """What a manifest says only where there is something to say."""
    model, runtime = MANIFEST.model, MANIFEST.runtime
    one = AdapterFile("style.gguf", digest("adapter"), 4096, 0.5)
    two = AdapterFile("tone.gguf", digest("second adapter"), 1, -1.3)
    libraries = tuple(Library(name, digest(name)) for name in ("libggml-cpu", "libllama", "libm"))
    yarn = Rope(1e6, 0.25, "yarn", 1.0, 0.0, 32.0, 1.0, 4096)
    for name, found in {
        "an adapter": replace(MANIFEST, model=replace(model, adapters=(one,))),
        "two adapters, suppressed ids": replace(MANIFEST, model=replace(model, adapters=(one, two), suppressed=(0, 7))),
        "suppressed ids": replace(MANIFEST, model=replace(model, suppressed=(3, 256, VOCABULARY - 1))),
        "a device, all layers on it": replace(
            MANIFEST, runtime=replace(runtime, device="CUDA0,CUDA1", n_gpu_layers=ALL_LAYERS)
        ),
        "another RoPE base": replace(MANIFEST, runtime=replace(runtime, rope=Rope(freq_base=500_000.0))),
        "every RoPE setting, and a device": replace(MANIFEST, runtime=replace(runtime, device="none", rope=yarn)),
        "libraries, and their compiler": replace(
            MANIFEST, runtime=replace(runtime, libraries=libraries, compiler="GCC: (Debian 12.2.0-14) 12.2.0")
        ),
        "rows in pairs": replace(MANIFEST, runtime=replace(runtime, pairs=True)),
        "a repeat penalty by default": replace(MANIFEST, defaults=SamplingDefaults(0.8, 4, 0.9, 0.0, 1.1, 64)),
    }.items():
        file.add(name, input=found.payload().hex())


def head() -> VectorFile:
    file = VectorFile("head", "input: the payload of a signed head.")
    story = Story.open("head").turn(asked(), 2)
    honest = story.head()

    def add(name: str, expected: str, payload: bytes) -> None:
        file.add(name, expected, input=payload.hex())

    add("a head", "ok", honest.payload())
    add("of an empty log", "ok", replace(honest, size=0).payload())
    fields = encoding.array(encoding.decode(honest.payload()), 6, "head")
    for name, index, value in (
        ("version 1", 0, 1),
        ("session of 15 bytes", 1, bytes(15)),
        ("session as text", 1, "0" * 16),
        ("size below zero", 2, -1),
        ("size of 2^63", 2, 2**63),
        ("root of 33 bytes", 3, bytes(33)),
        ("manifest digest missing", 4, None),
        ("time as a float", 5, 0.5),
    ):
        add(name, "malformed", encoding.encode([*fields[:index], value, *fields[index + 1 :]]))
    add("version 3", "newer-version", encoding.encode([3, *fields[1:]]))
    add("version 3, with a field more", "newer-version", encoding.encode([3, *fields[1:], 0]))
    add("five fields", "malformed", encoding.encode(fields[:5]))
    add("an interim head", "ok", replace(honest, interim=True).payload())
    for value in (0, 1, False, None):
        add(f"seven fields, the last {value}", "malformed", encoding.encode([*fields, value]))
    add("eight fields", "malformed", encoding.encode([*fields, True, True]))
    add("a map", "malformed", encoding.encode(dict(enumerate(fields))))
    add("a byte after the end", "malformed", honest.payload() + b"\0")
    long = honest.payload().replace(b"\x05\x58\x20", b"\x18\x05\x58\x20", 1)
    add("a size not in its shortest form", "malformed", long)
    return file


def leaf() -> VectorFile:
    file = VectorFile("leaf", "input: one leaf of a session log. Logits in the outcome are little-endian binary32.")
    story = Story.open("leaf").turn(asked(temperature=0.5), 2, sources=[Source.DRAFT_ACCEPTED]).close()
    for name, found in zip(("open", "turn", "token", "second token", "end", "close"), story.leaves, strict=True):
        file.add(name, input=found.encode().hex())
    fields = {
        name: encoding.array(encoding.decode(found.encode()), None, "leaf")
        for name, found in zip(("open", "turn", "token", "other", "end", "close"), story.leaves, strict=True)
    }

    def bad(name: str, kind: str, index: int, value: Any) -> None:
        changed = [*fields[kind][:index], value, *fields[kind][index + 1 :]]
        file.add(f"{kind}: {name}", "malformed", input=encoding.encode(changed).hex())

    bad("kind 5", "open", 0, 5)
    bad("kind of another leaf", "open", 0, 1)
    bad("kind below zero", "open", 0, -1)
    bad("session of 17 bytes", "open", 1, bytes(17))
    bad("sequence number of 2^63", "open", 2, 2**63)
    bad("salt of 15 bytes", "open", 3, bytes(15))
    bad("record version 1", "open", 4, 1)
    newer = [*fields["open"][:4], 3, *fields["open"][5:]]
    file.add("open: record version 3", "newer-version", input=encoding.encode(newer).hex())
    bad("digest of 31 bytes", "open", 5, bytes(31))
    bad("time as text", "open", 6, "now")
    bad("turn of 2^32", "turn", 4, 2**32)
    bad("prompt count of 2^31", "turn", 7, 2**31)
    bad("parameters as an array", "turn", 8, [0.5, 6, 0.95, 0.02, 100])
    bad("temperature as an integer", "turn", 8, {1: 1, 2: 6, 3: 0.95, 4: 0.02, 5: 100})
    bad("temperature below zero", "turn", 8, {1: -0.5, 2: 6, 3: 0.95, 4: 0.02, 5: 100})
    bad("temperature of 5e-324", "turn", 8, {1: 5e-324, 2: 6, 3: 0.95, 4: 0.02, 5: 100})
    bad("infinite temperature", "turn", 8, {1: float("inf"), 2: 6, 3: 0.95, 4: 0.02, 5: 100})
    bad("top_k of 129", "turn", 8, {1: 0.5, 2: 129, 3: 0.95, 4: 0.02, 5: 100})
    bad("min_p below zero", "turn", 8, {1: 0.5, 2: 6, 3: 0.95, 4: -0.1, 5: 100})
    most = limits.ANSWER_TOKENS
    bad("max_tokens of 2^17 + 1", "turn", 8, {1: 0.5, 2: 6, 3: 0.95, 4: 0.02, 5: most + 1})
    bad("max_tokens of 0", "turn", 8, {1: 0.5, 2: 6, 3: 0.95, 4: 0.02, 5: 0})
    five: Map = {1: 0.5, 2: 6, 3: 0.95, 4: 0.02, 5: 100}
    all_of_them: Map = {6: [1.3, 64], 7: 0.5, 8: -0.25, 9: [[3, 1.5], [7, -100.0]], 10: True, 11: bytes(32)}
    processed: list[Value] = [*fields["turn"][:8], {**five, **all_of_them}, *fields["turn"][9:]]
    file.add("turn: all processors", input=encoding.encode(processed).hex())
    biases: list[Value] = [[each, 0.1] for each in range(limits.BIASES + 1)]
    full: Map = {**five, 5: most, **all_of_them, 9: biases[:-1]}
    largest: list[Value] = [*fields["turn"][:8], full, *fields["turn"][9:]]
    file.add("turn: max_tokens of 2^17, and as many biases as there may be", input=encoding.encode(largest).hex())
    for name, key, value in (
        ("a bias too many", 9, biases),
        ("a repeat penalty of 1", 6, [1.0, 64]),
        ("a repeat penalty over no tokens", 6, [1.3, 0]),
        ("a repeat penalty alone", 6, 1.3),
        ("a repeat penalty over 100", 6, [100.5, 64]),
        ("a frequency penalty of 0", 7, 0.0),
        ("a frequency penalty of -0", 7, -0.0),
        ("a frequency penalty over 2", 7, 2.5),
        ("a presence penalty as an integer", 8, 1),
        ("no biases", 9, []),
        ("a bias of 0", 9, [[3, 0.0]]),
        ("a bias over 100", 9, [[3, 100.5]]),
        ("biases in descending order", 9, [[7, 1.0], [3, 1.0]]),
        ("a bias twice", 9, [[3, 1.0], [3, 1.0]]),
        ("biases as a map", 9, {3: 1.0}),
        ("ignore_eos false", 10, False),
        ("ignore_eos as 1", 10, 1),
        ("a constraint of 31 bytes", 11, bytes(31)),
        ("an empty constraint", 11, b""),
        ("a key 12", 12, True),
    ):
        bad(name, "turn", 8, {**five, key: value})
    bad("a parameter missing", "turn", 8, {1: 0.5, 2: 6, 3: 0.95, 5: 100})
    bad("nonce of 65 bytes", "turn", 10, bytes(65))
    bad("nonce of 7 bytes", "turn", 10, bytes(7))
    bad("nonce source 3", "turn", 11, 3)
    bad("a seed of 16 bytes", "turn", 11, 1)
    bad("source 5", "token", 7, 5)
    bad("token of 2^31", "token", 6, 2**31)
    bad("step below zero", "token", 8, -1)
    ids, logits = (encoding.bytes_(fields["token"][index], "entries") for index in (10, 11))
    bad("ids as an array", "token", 10, [1, 2])
    bad("one id too few", "token", 10, ids[4:])
    bad("ids of 31 bytes", "token", 10, ids[:-1])
    bad("logits ascending", "token", 11, b"".join(logits[at : at + 4] for at in range(28, -4, -4)))
    bad("an infinite logit", "token", 11, bytes.fromhex("0000807f") + logits[4:])
    bad("a logit that is no number", "token", 11, logits[:-4] + bytes.fromhex("0000c07f"))
    bad("an id twice", "token", 10, ids[:-4] + ids[:4])
    equal = bytes.fromhex("0000803f0000803f")
    two = [*fields["token"][:10], (3).to_bytes(4, "little") + (9).to_bytes(4, "little"), equal]
    file.add("token: equal logits, lower id first", input=encoding.encode(two).hex())
    two = [*fields["token"][:10], (9).to_bytes(4, "little") + (3).to_bytes(4, "little"), equal]
    file.add("token: equal logits, higher id first", "malformed", input=encoding.encode(two).hex())
    zeros = bytes.fromhex("0000008000000000")
    two = [*fields["token"][:10], (3).to_bytes(4, "little") + (9).to_bytes(4, "little"), zeros]
    file.add("token: -0 and 0 are equal logits", input=encoding.encode(two).hex())
    none = [*fields["token"][:10], b"", b""]
    file.add("token: no entries", "malformed", input=encoding.encode(none).hex())
    many = b"".join(at.to_bytes(4, "little") for at in range(129))
    lots = [*fields["token"][:10], many, bytes(4 * 129)]
    file.add("token: 129 entries", "malformed", input=encoding.encode(lots).hex())
    bad("finish reason 4", "end", 5, 4)
    bad("text digest of 31 bytes", "end", 8, bytes(31))
    bad("tokens digest missing", "end", 9, None)
    bad("accepted count below zero", "end", 11, -1)
    bad("turns of 2^32", "close", 4, 2**32)
    for kind in ("open", "turn", "token", "end", "close"):
        file.add(f"{kind}: one field more", "malformed", input=encoding.encode([*fields[kind], 0]).hex())
        file.add(f"{kind}: one field less", "malformed", input=encoding.encode(fields[kind][:-1]).hex())
    honest = story.leaves[0].encode()
    file.add("a map", "malformed", input=encoding.encode({0: 0}).hex())
    file.add("three fields", "malformed", input=encoding.encode(fields["open"][:3]).hex())
    file.add("a byte after the end", "malformed", input=(honest + b"\0").hex())
    file.add("cut short", "malformed", input=honest[:-1].hex())
    file.add("a sequence number in two bytes", "malformed", input=honest.replace(b"\x00\x50", b"\x18\x00\x50", 1).hex())
    return file


def packed() -> VectorFile:
    file = VectorFile(
        "packed",
        "input: packed tokens. steps: decode step and row in it of each token. digest: the tokens digest of an end.",
    )
    accepted = [Source.PLAIN, Source.DRAFT_ACCEPTED, Source.DRAFT_ACCEPTED, Source.BONUS, Source.DRAFT_CORRECTED]
    story = Story.open("packed").turn(asked(), 7, sources=accepted)
    honest = pack(story.tokens())

    def add(name: str, expected: str, value: PackedTokens, **changed: Any) -> None:
        file.add(name, expected, input=encoding.encode(replace(value, **changed).to_cbor()).hex())

    add("seven tokens of two bytes, two accepted drafts", "ok", honest)
    add("no tokens", "ok", PackedTokens(0, 2, b"", b""))
    for width, vocabulary in ((1, 256), (2, 257), (3, 65_537), (4, 2**24 + 1)):
        ids = [0, vocabulary - 1]
        made = PackedTokens.pack(ids, [Source.PLAIN] * 2, [True, True], vocabulary)
        add(f"width of a vocabulary of {vocabulary}: {width}", "ok", made)
    add("forced tokens", "ok", PackedTokens(2, 1, b"\1\2", b"\xcc"))
    add("width 0", "malformed", PackedTokens(2, 0, b"", b"\x88"))
    add("width 5", "malformed", PackedTokens(1, 5, bytes(5), b"\x08"))
    add("ids one byte short", "malformed", honest, ids=honest.ids[:-1])
    add("ids one byte long", "malformed", honest, ids=honest.ids + b"\0")
    add("marks one byte short", "malformed", honest, marks=honest.marks[:-1])
    add("a mark after the last", "malformed", honest, marks=honest.marks[:-1] + bytes([honest.marks[-1] | 0x80]))
    add("source 5", "malformed", honest, marks=b"\x0d" + honest.marks[1:])
    add("source 7 in the high half", "malformed", honest, marks=b"\x78" + honest.marks[1:])
    add("count of 2^17 + 1", "malformed", honest, count=limits.ANSWER_TOKENS + 1)
    file.add("three fields", "malformed", input=encoding.encode(honest.to_cbor()[:3]).hex())
    file.add("null", "malformed", input="f6")
    return file
