"""Options in groups: a dataclass of options is one parameter of a command, and one section of its help.

    @group("Address")
    class Address:
        host: Annotated[str, typer.Option(help="…")] = "127.0.0.1"
        port: Annotated[int, typer.Option(help="…")] = 8000

    @grouped
    def serve(model: Annotated[Path, typer.Option(help="…")], address: Address) -> None: ...

Typer reads signatures and knows no such groups: `grouped` gives it the signature with --model, --host and --port.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from typer.core import TyperCommand

Group = TypeVar("Group")
Result = TypeVar("Result")


@dataclass_transform(frozen_default=True)
def group(section: str) -> Callable[[type[Group]], type[Group]]:
    """Make a class a frozen dataclass whose fields are the options of a section."""

    def made(kind: type[Group]) -> type[Group]:
        kind.SECTION = section  # type: ignore[attr-defined]
        return dataclasses.dataclass(frozen=True, slots=True)(kind)

    return made


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command with each group's options in place of the group; it is called with keywords alone."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        alone = parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        parameters += _options(groups[name]) if name in groups else [alone]

    @functools.wraps(command)
    def run(**given: Any) -> Result:
        for name, kind in groups.items():
            options = {field.name for field in dataclasses.fields(kind)} & given.keys()
            given[name] = kind(**{option: given.pop(option) for option in options})
        return command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        kind, (option,) = hints[field.name].__origin__, hints[field.name].__metadata__
        option = copy.copy(option)
        option.rich_help_panel = group.SECTION
        default = Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


class Command(TyperCommand):
    """Writes each group's section in plain text: Typer's own panels cut the names of options at 80 columns."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            section = sections.setdefault(getattr(parameter, "rich_help_panel", None) or kind, [])
            section += filter(None, [parameter.get_help_record(ctx)])
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
