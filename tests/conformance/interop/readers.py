# mypy: ignore-errors
"""Reads COSE objects with other people's libraries. Runs in their environment and imports nothing of ours.

Standard input: a JSON object with the public key (`raw`, `kid`, `pem`) and `cases`: name → {kind, data, entry}.
Standard output: name → library → "ok", or the error's text.
"""

import json
import sys

import cwt
import scitt_cose
from pycose.keys import OKPKey
from pycose.messages import Sign1Message


def read_cwt(key, case):
    cose_key = cwt.COSEKey.new({1: 1, -1: 6, -2: key["raw"], 2: key["kid"]})
    return cwt.COSE.new().decode(case["data"], cose_key)


def read_pycose(key, case):
    message = Sign1Message.decode(case["data"])
    message.key = OKPKey(crv="ED25519", x=key["raw"])
    if not message.verify_signature():
        raise ValueError("signature does not verify")
    return message.payload


def read_scitt(key, case):
    return scitt_cose.verify_sign1(case["data"], public_key_pem=key["pem"]).payload


def read_scitt_receipt(key, case):
    result = scitt_cose.verify_receipt(case["data"], leaf_entry_hex=case["entry"].hex(), log_public_key_pem=key["pem"])
    if not result.ok:
        raise ValueError("; ".join(map(str, result.errors)))
    return case["entry"]


READERS = {
    "sign1": {"cwt": read_cwt, "pycose": read_pycose, "scitt-cose": read_scitt},
    "receipt": {"scitt-cose": read_scitt_receipt},
}


def main():
    request = json.load(sys.stdin)
    key = {name: bytes.fromhex(value) for name, value in request["key"].items()}
    answers = {}
    for name, case in request["cases"].items():
        data = {part: bytes.fromhex(value) for part, value in case.items() if part != "kind"}
        answers[name] = {}
        for library, read in READERS[case["kind"]].items():
            try:
                answers[name][library] = "ok" if read(key, data) == data["entry"] else "another payload"
            except Exception as error:  # whatever it is, it is that library's way to refuse
                answers[name][library] = f"{type(error).__name__}: {error}"
    json.dump(answers, sys.stdout)


main()
