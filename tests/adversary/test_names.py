"""A provider that calls itself by another's name: whoever trusts both keys sees whose word it is, in every place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.made_up_model import PROMPT
from tests.sessions import PROVIDER, SESSION, Recording, ask
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.cli import main
from verifiable.session.head import Head
from verifiable.wire.keys import PrivateKey

MALLORY = PrivateKey.generate("mallory", b"m" * 32)


def trusted(folder: Path) -> list[str]:
    words = []
    for key in (PROVIDER, MALLORY):
        path = folder / f"{key.name}.pub"
        path.write_text(key.public.vkey() + "\n")
        words += ["--trust", str(path)]
    return words


def test_a_borrowed_name_is_shown_as_its_holders_own_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Recording()
    made.turn(ask(), PROMPT)
    receipt = made.receipt()
    borrowed = replace(receipt, manifest=made.manifest.sign(MALLORY))
    for name, given, key in (("own", receipt, PROVIDER.public), ("borrowed", borrowed, MALLORY.public)):
        path = tmp_path / f"{name}.receipt"
        path.write_bytes(given.encode())
        assert main(["verify", str(path), *trusted(tmp_path)]) == 0
        out = capsys.readouterr().out
        called = "" if key.name == made.manifest.provider else f", which calls itself {made.manifest.provider}"
        assert f"Signed by {key.label}{called} at" in out
        # A message's name of a key is how that key's line begins in the file that the user holds.
        assert (tmp_path / f"{key.name}.pub").read_text().startswith(key.label + "+")
        assert main(["verify", str(path), *trusted(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["details"]["signed_by"] == key.vkey()


def test_nobody_answers_for_what_another_signed_in_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Recording()
    made.turn(ask(), PROMPT)
    own = made.receipt()
    head = Head.peek(own.head)
    other = replace(head, root=bytes(32))
    mine, theirs = made.manifest.sign(PROVIDER), made.manifest.sign(MALLORY)
    framed = Fraud(FraudKind.TWO_HEADS, (mine, theirs), (own.head, other.sign(SESSION)))
    forked = replace(framed, manifests=(theirs,))
    for name, made_of, status in (("framed", framed, 3), ("forked", forked, 1)):
        path = tmp_path / f"{name}.fraud"
        path.write_bytes(made_of.encode())
        assert main(["verify", "--fraud", str(path), *trusted(tmp_path)]) == status
        out = capsys.readouterr().out
        assert ("two-histories" in out) is (status == 1)
        assert (f"the holder of {MALLORY.public.label}" in out) is (status == 1)
        assert PROVIDER.public.label not in out
