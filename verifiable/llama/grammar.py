"""Grammars and JSON schemas as llama.cpp reads them (GBNF), held at one point of an answer.

Provider and auditor run the same code on the same build, so both allow the same tokens. llama.cpp ends the process
when it is told a token that its grammar does not allow, so nothing is accepted here that was not allowed first, and a
grammar is checked for what would exhaust the machine before it is compiled.
"""

from __future__ import annotations

import ctypes
import json
import re
from typing import Any, Final

import numpy as np

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.model import Model
from verifiable.logits import Ids
from verifiable.processors import Mask

ROOT: Final = "root"
MAX_GBNF: Final = 1 << 18
"""Characters of GBNF, after a schema was made into one."""
MAX_REPEATS: Final = 2000
"""Largest number in a repetition `{m,n}`, and most characters that all repetitions may unroll to, in thousands."""

_REPEAT = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)


def to_gbnf(constraint: bytes) -> str:
    """The grammar of a request's constraint (`Request.constraint`).

    Raises:
        PolicyError: the schema uses what llama.cpp's conversion does not know, or is too large.
    """
    given = json.loads(constraint)
    if "grammar" in given:
        text, name = str(given["grammar"]), "grammar"
    else:
        text, name = _from_schema(given["schema"]), "response_format"
    _check(text, name)
    return text


def _from_schema(schema: Any) -> str:
    if _fetches(schema):
        raise PolicyError(
            "a schema refers to another document", expected='"$ref" that begins with #', parameter="response_format"
        )
    if schema is True or schema == {"type": "object"}:
        schema = {"type": "object"} if schema else {}
    try:
        # Members keep the order in which the schema's canonical form has them.
        return str(library.bindings("llama_grammar").json_schema_to_gbnf(json.dumps(schema)))
    except (AssertionError, AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise PolicyError(
            "the schema can't be made into a grammar", found=str(error)[:200], parameter="response_format"
        ) from error


def _fetches(schema: Any) -> bool:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            return True
        return any(_fetches(value) for value in schema.values())
    return isinstance(schema, list) and any(_fetches(value) for value in schema)


def _check(text: str, name: str) -> None:
    """Refuse what llama.cpp would unroll beyond all bounds."""
    if not text.strip() or len(text) > MAX_GBNF or "\0" in text:
        raise PolicyError("the grammar's length", expected=f"1 to {MAX_GBNF} characters, no NUL", parameter=name)
    product = 1
    for low, comma, high in _REPEAT.findall(_LITERAL.sub('""', text)):
        if len(low) > 6 or len(high) > 6 or not (low or high) or (comma and high and int(high) < int(low or 0)):
            raise PolicyError(
                "a repetition", expected="{m}, {m,} or {m,n}", found=f"{low}{comma}{high}", parameter=name
            )
        times = max(int(low or 0), int(high or 0), 1)
        product = min(product * times, 1 << 62)
        if times > MAX_REPEATS or product > 1000 * MAX_REPEATS:
            raise PolicyError(
                "the grammar repeats too often",
                expected=f"up to {MAX_REPEATS} times, and {1000 * MAX_REPEATS} in all",
                found=times,
                parameter=name,
            )
    depth = deepest = 0
    for character in _LITERAL.sub('""', text):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > 64:
        raise PolicyError("the grammar is nested too deeply", expected="64 levels", found=deepest, parameter=name)


class Grammar:
    """Implements `verifiable.processors.Constraint`. Free it with `close`, or let it go.

    Raises PolicyError where llama.cpp can't compile the text.
    """

    def __init__(self, model: Model, gbnf: str, parameter: str = "grammar") -> None:
        self._lib: Any = library.library()
        self._sampler: Any = None
        library.forget_log()
        pointer = self._lib.llama_sampler_init_grammar(
            model.vocab, gbnf.encode("utf-8", "surrogatepass"), ROOT.encode()
        )
        if not pointer:
            raise PolicyError(
                "llama.cpp can't read the grammar",
                hint=library.last_log() or "Does it have a rule 'root'?",
                parameter=parameter,
            )
        self._sampler = pointer
        self._data: Any = None
        self._view: Any = None

    def allowed(self, ids: Ids) -> Mask:
        """Which of these ids may come next, bool, shape of `ids`. All false once the grammar was left."""
        if self._sampler is None:
            return np.zeros(len(ids), np.bool_)
        data = np.zeros(len(ids), _TOKEN_DATA)
        data["id"] = ids
        data["logit"] = 1.0
        array = self._lib.llama_token_data_array(
            data=ctypes.cast(data.ctypes.data, ctypes.POINTER(self._lib.llama_token_data)),
            size=len(ids),
            selected=-1,
            sorted=False,
        )
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(array))
        if array.size != len(ids) or not np.array_equal(data["id"], ids):
            raise EngineError("llama.cpp's grammar", expected="the same tokens in the same order", found="others")
        allowed: Mask = data["logit"] == np.float32(1.0)
        return allowed

    def accept(self, token: int) -> None:
        """Go on with this token. One that is not allowed leaves the grammar for good: nothing is allowed after it."""
        if self._sampler is None:
            return
        if not self.allowed(np.array([token], np.uint32))[0]:
            self.close()
            return
        self._lib.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            self._lib.llama_sampler_free(sampler)

    def __del__(self) -> None:
        if getattr(self, "_sampler", None) is not None:
            self.close()


_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
