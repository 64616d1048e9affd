"""Grammars, and JSON schemas made into them, as llama.cpp reads them (GBNF), held at one point of an answer.

Provider and auditor run the same code on the same build, so both allow the same tokens. llama.cpp ends the process
when it is told a token that its grammar does not allow, so nothing is accepted here that was not allowed first, and a
grammar is checked for what would exhaust the machine before it is compiled.
"""

from __future__ import annotations

import ctypes
import json
import time
from typing import Any, Final

import numpy as np

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.grammar.gbnf import check
from verifiable.llama.grammar.schema import call_grammar, schema_grammar
from verifiable.llama.model import Model
from verifiable.sampling.logits import Ids
from verifiable.sampling.processors import Mask

ROOT: Final = "root"


def to_gbnf(constraint: bytes) -> str:
    """The grammar of a request's constraint (`Request.constraint`).

    Raises PolicyError where a schema demands what is not enforced here (`schema`), or is too large.
    """
    given = json.loads(constraint)
    if "grammar" in given:
        text, name = str(given["grammar"]), "grammar"
    elif "tools" in given:
        text, name = call_grammar(given["tools"]), "tools"
    else:
        text, name = schema_grammar(given["schema"]), "response_format"
    check(text, name)
    return text


class Grammar:
    """Implements `verifiable.sampling.processors.Constraint`. Free it with `close`, or let it go.

    Args:
        model: whose tokens are checked.
        gbnf: what `to_gbnf` gave.
        patience: seconds that a first look at the whole vocabulary may take; None for an auditor, who takes the time.

    Raises PolicyError where llama.cpp can't compile the text, or it takes more than the patience.
    """

    def __init__(self, model: Model, gbnf: str, patience: float | None = None) -> None:
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
                parameter="grammar",
            )
        self._sampler = pointer
        if patience is not None:
            began = time.thread_time()
            self.allowed(np.arange(model.n_vocab, dtype=np.uint32))
            if time.thread_time() - began > patience:
                self.close()
                raise PolicyError(
                    "the grammar is too slow", hint="It has too many alternatives at once.", parameter="grammar"
                )

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
