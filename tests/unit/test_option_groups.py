"""Options in groups: one definition of each, the command's own names and defaults, a section of the help."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Annotated

import pytest
import typer

from verifiable import cli
from verifiable.commands.groups import group, grouped
from verifiable.errors import PolicyError


@group("Address")
class Address:
    port: Annotated[int, typer.Option(min=1, envvar="THE_PORT", help="Port.")]
    a_host_with_a_long_name: Annotated[str, typer.Option(help="Host.")] = "127.0.0.1"
    keys: Annotated[list[str] | None, typer.Option("--key", help="Key.")] = None

    def __post_init__(self) -> None:
        if self.port == 666:
            raise PolicyError("not that port")


@grouped
def serve(
    *,
    address: Address,
    model: Annotated[str, typer.Argument(help="File.")] = "a.gguf",
    fast: Annotated[bool, typer.Option("--fast", help="Hurry.")] = False,
) -> int:
    """Serve."""
    print(model, fast, address)
    return address.port % 256


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("command_under_test")
    module.run = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "command_under_test", module)
    monkeypatch.setattr(cli, "entry_points", lambda group: [EntryPoint("try", "command_under_test:run", cli.GROUP)])
    return lambda *arguments: cli.main(["try", *arguments])


def test_a_group_reaches_the_command_as_one_value(call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("b.gguf", "--port", "7", "--key", "x", "--key", "y", "--fast") == 7
    assert capsys.readouterr().out == f"b.gguf True {Address(7, keys=['x', 'y'])}\n"


def test_defaults_and_environment_variables_are_those_of_the_group(
    call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call() == 2
    assert "--port" in capsys.readouterr().err
    assert call("--port", "0") == 2
    monkeypatch.setenv("THE_PORT", "9")
    capsys.readouterr()
    assert call() == 9
    assert capsys.readouterr().out == f"a.gguf False {Address(9)}\n"


def test_called_from_python_it_takes_the_options_by_name() -> None:
    assert serve(port=5) == 5


def test_what_a_group_refuses_is_refused_as_by_the_command(call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--port", "666") == 2
    assert capsys.readouterr().err == "error: not that port\n"


def test_each_group_is_a_section_of_the_help_with_whole_names(
    call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(\w+):$", out, re.MULTILINE) == ["Arguments", "Options", "Address"]
    own, address = out.split("Address:")
    assert all(name in own for name in ("--fast", "--help"))
    assert all(name in address for name in ("--port", "--a-host-with-a-long-name", "--key", "THE_PORT"))


def test_every_option_of_every_command_stands_in_its_help_once(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.find_commands():
        assert cli.main([*name.split(), "--help"]) == 0, name
        options = re.findall(r"^  (--[a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE)
        assert len(options) == len(set(options)), name
