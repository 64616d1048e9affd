"""Grammars are read before llama.cpp reads them."""

from __future__ import annotations

import pytest

from verifiable.errors import PolicyError
from verifiable.llama.grammar.gbnf import check

GOOD = (
    'root ::= "a"',
    "root ::= ",
    'root ::= ("yes" | "no") ("," [ ] ("yes" | "no"))*',
    'root ::= a\na ::= [^"\\\\] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    'root ::= # a comment\n  "x" |\n  y\ny ::= . | <[5]> | !<|im_end|>',
    'root ::= (\n "a"\n | "b"\n)?\n\n# the end\n',
    'root ::= "\\n\\x41\\u00e4\\U0001F600"{2,3} [a-z0-9_]{1,} "b"{0}',
    "root ::= a-b\r\na-b ::= [ \\t\\n]*\r\n",
    'root ::= "😀" | [äöü]',
    'root ::= ("a"{2000} "b"{2000}){3}',
    "root ::= " + ' "," '.join(["[a-z]{0,300}"] * 20),
)
BAD = (
    "",
    "   ",
    'x ::= "a"',
    "root ::= undefined",
    'root ::= ("a"',
    'root ::= "a',
    "root ::= [a",
    'root ::= "\\q"',
    'root ::= "\\x4"',
    'root = "a"',
    'root ::= "a"{5,2}',
    'root ::= "a"{2001}',
    "root ::= " + " ".join(['"a"{2000}'] * 40),
    'root ::= "' + "a" * 200 + '"{2000}',
    'root ::= "a"{-1}',
    'root ::= "a"{,}',
    'root ::= "a"{,3}',
    "root ::= *",
    "root ::= {1}",
    'root ::= "a" )',
    'root ::= "a\0"',
    "root ::= " + "(" * 70 + '"a"' + ")" * 70,
)


@pytest.mark.parametrize("text", GOOD)
def test_what_llama_cpp_reads_is_read(text: str) -> None:
    check(text, "grammar")


@pytest.mark.parametrize("text", BAD)
def test_what_it_would_print_or_die_of_is_refused_by_name(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check(text, "grammar")
    assert caught.value.parameter == "grammar"
