"""A chat template: Jinja in a sandbox, set up as model publishers expect it, with nothing in it that varies.

The environment is that of Hugging Face transformers (`_compile_jinja_template`): blocks trimmed, loop controls, a
`tojson` that keeps Unicode, `raise_exception`. Nothing in it is random, and the clock (`strftime_now`) is there only
when the caller gives a time: provider and auditor have to render the same prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from verifiable.errors import MalformedError, PolicyError

MAX_SOURCE: Final = 1024 * 1024
MAX_PROMPT: Final = 64 * 1024 * 1024


class _Raised(Exception):
    """What `raise_exception` in a template throws."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it only holds its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: object) -> NoReturn:
    raise _Raised(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Template:
    """A compiled template. `bos` and `eos` are the texts for its variables `bos_token` and `eos_token`.

    Attributes:
        names: keys and attributes that the template asks for by name.
        constants: string constants in its expressions, longest first.

    Raises:
        MalformedError: it is no Jinja template.
    """

    def __init__(self, source: str, bos: str, eos: str) -> None:
        if len(source) > MAX_SOURCE:
            raise MalformedError("the chat template is too long", expected=MAX_SOURCE, found=len(source))
        self.source = source
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.filters.pop("random", None)
        environment.globals.pop("lipsum", None)
        environment.globals["raise_exception"] = _raise
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise MalformedError("the chat template is no Jinja template", found=error) from error
        self._variables = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
        constants = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        attributes = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        self.names = frozenset(constants | attributes)
        self.constants = tuple(sorted((each for each in constants if each), key=lambda each: (-len(each), each)))

    def render(self, messages: Sequence[Any], tools: Sequence[Any] | None, now: datetime | None = None) -> str:
        """The prompt as text. `strftime_now` tells *now*; it is not defined when that is None.

        Raises PolicyError where the template refuses these messages, or fails on them.
        """
        try:
            clock = {} if now is None else {"strftime_now": now.strftime}
            text = self._template.render(messages=messages, tools=tools, **self._variables, **clock)
        except _Raised as error:
            raise PolicyError("the chat template refuses the messages", found=error, parameter="messages") from error
        except jinja2.TemplateError as error:
            raise PolicyError("the chat template fails", found=error.message, parameter="messages") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, AttributeError) as error:
            # Errors of the template's own making: it is a program, and these are what Python raises for it.
            reason = f"{type(error).__name__}: {error}"
            raise PolicyError("the chat template fails", found=reason, parameter="messages") from error
        except (MemoryError, OverflowError) as error:
            raise PolicyError("the chat template makes too long a prompt", parameter="messages") from error
        if len(text) > MAX_PROMPT:
            raise PolicyError("the prompt is too long", expected=MAX_PROMPT, found=len(text), parameter="messages")
        return text
