"""The command shell: what it lists, what it refuses, and what it says when something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import typer

from verifiable import cli
from verifiable.errors import EngineError, MalformedError, VerificationError


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def verifiable(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("import sys; from verifiable.cli import main; sys.exit(main())", *arguments)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Install a function as the only sub-command, ``try``, and return a caller of the shell."""

    def install(function: object):
        module = ModuleType("command_under_test")
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "command_under_test", module)
        entry = EntryPoint("try", "command_under_test:run", cli.GROUP)
        monkeypatch.setattr(cli, "entry_points", lambda group: [entry])

        def call(*arguments: str) -> int:
            return cli.main(["try", *arguments])

        return call

    return install


def test_help_lists_every_command_of_this_distribution() -> None:
    done = verifiable("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for name in ("verify", "audit", "serve", "probe"):
        assert f"\n  {name}" in done.stdout


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from verifiable.cli import main; status = main(['--help'])\n"
        "heavy = {'numpy', 'cbor2', 'nacl', 'httpx', 'typer', 'rich', 'llama_cpp', 'fastapi', 'sqlalchemy',"
        " 'engine', 'verifier', 'verifiable.llama'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr); sys.exit(status)"
    )
    done = python(code)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_version() -> None:
    from importlib.metadata import version

    done = verifiable("--version")
    assert done.returncode == 0
    assert done.stdout == f"verifiable {version('verifiable-inference')}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["--frobnicate"], "there is no option '--frobnicate'"),
        (["verfy"], "Did you mean `verifiable verify`?"),
        (["auditors", "frobnicate"], "there is no command 'auditors frobnicate'"),
        (["auditors", "lst"], "Did you mean `verifiable auditors list`?"),
        (["\x1b[31mred"], "there is no command"),
    ],
)
def test_unknown_words_are_usage_errors(arguments: Sequence[str], says: str) -> None:
    done = verifiable(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "\x1b" not in done.stderr


def test_no_command_prints_the_list_and_is_a_usage_error() -> None:
    done = verifiable()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: verifiable COMMAND" in done.stderr


def test_bad_usage_of_a_command(command, capsys: pytest.CaptureFixture[str]) -> None:
    def run(count: int) -> None:
        """Count."""

    call = command(run)
    assert call() == 2
    assert call("seven") == 2
    assert call("1", "--nonsense") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[2].lower().startswith("error: invalid value for 'count'")
    assert lines[1] == "       `verifiable try --help` tells what it takes."


def test_help_of_a_command_shows_its_whole_name(command, capsys: pytest.CaptureFixture[str]) -> None:
    def run(count: int) -> None:
        """Count [slowly]."""

    call = command(run)
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert call("-h") == 0
    assert capsys.readouterr().out == out
    assert "Usage: verifiable try " in out
    assert "Count [slowly]." in out


def test_a_group_of_commands_can_be_an_entry_point(command, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

    @group.command()
    def new(name: str) -> None:
        print(f"new {name}")

    @group.command()
    def old() -> None:
        raise typer.Exit(3)

    call = command(group)
    assert call("new", "acme") == 0
    assert capsys.readouterr().out == "new acme\n"
    assert call("old") == 3
    assert call() == 2
    assert "verifiable try" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (
            VerificationError("the root differs", code="root-differs", expected=b"\1", found=b"\2"),
            1,
            "error: the root differs: expected 01 (1 bytes), found 02 (1 bytes)\n",
        ),
        (MalformedError("no receipt", hint="Which file?"), 2, "error: no receipt\n       Which file?\n"),
        (EngineError("no room"), 4, "error: no room\n"),
        (FileNotFoundError(2, "No such file or directory", "a.gguf"), 4, "error: a.gguf: No such file or directory\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (
            ModuleNotFoundError("No module named 'fastapi'", name="fastapi"),
            4,
            "error: `verifiable try` needs the extra [serve]: fastapi is not installed\n"
            "       Install it: pip install 'verifiable-inference[serve]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'llama_cpp.llama'", name="llama_cpp.llama"),
            4,
            "error: `verifiable try` needs the extra [llama]: llama_cpp is not installed\n"
            "       Install it: CMAKE_ARGS=-DGGML_NATIVE=OFF pip install 'verifiable-inference[llama]'"
            "   (compiles llama.cpp: about five minutes)\n",
        ),
    ],
)
def test_errors_become_one_line_a_hint_and_an_exit_status(
    command, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, says: str
) -> None:
    def run() -> None:
        raise error

    assert command(run)() == status
    captured = capsys.readouterr()
    assert captured.err == says
    assert captured.out == ""


@pytest.mark.parametrize("error", [ValueError("boom"), ModuleNotFoundError("No module named 'x'", name="x")])
def test_a_bug_is_never_taken_for_a_failed_check(
    command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run() -> None:
        raise error

    call = command(run)
    assert call() == 70
    err = capsys.readouterr().err
    assert err.startswith("error: `verifiable try` met a fault of its own: ")
    assert "Traceback" not in err
    monkeypatch.setenv("VERIFIABLE_DEBUG", "1")
    with pytest.raises(type(error)):
        call()


def test_a_message_cannot_drive_the_terminal(command, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise MalformedError("title\x1b]0;owned\x07\nerror: forged")

    assert command(run)() == 2
    assert capsys.readouterr().err == "error: title ]0;owned  error: forged\n"


def test_what_a_command_returns_is_its_exit_status(command) -> None:
    assert command(lambda: 1)() == 1
    assert command(lambda: None)() == 0
    assert command(lambda: True)() == 0


def test_a_reader_that_goes_away_is_no_failed_check() -> None:
    code = (
        "import sys, types, importlib.metadata as m\n"
        "from verifiable import cli\n"
        "def run():\n"
        "    for n in range(200_000): print('line', n)\n"
        "module = types.ModuleType('talker'); module.run = run; sys.modules['talker'] = module\n"
        "cli.entry_points = lambda group: [m.EntryPoint('try', 'talker:run', group)]\n"
        "sys.exit(cli.main(['try']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"line 0\n"
    process.stdout.close()
    with process.stderr as stream:
        assert stream.read() == b""
    assert process.wait(timeout=30) == 141


def test_summaries_come_from_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "outside_commands"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "tools.py").write_text(
        "import typer\n"
        "def plain(x: int) -> None:\n    '''Do it.\n\n    At length.\n    '''\n"
        "def bare() -> None: pass\n"
        "group = typer.Typer(help='Many things.\\nAnd more.')\n"
    )
    (package / "broken.py").write_text("def run(:\n")
    monkeypatch.syspath_prepend(tmp_path)

    def summary(target: str) -> str:
        return cli.summary(EntryPoint("try", target, cli.GROUP))

    assert summary("outside_commands.tools:plain") == "Do it."
    assert summary("outside_commands.tools:bare") == ""
    assert summary("outside_commands.tools:group") == "Many things."
    assert summary("outside_commands.broken:run") == "(not usable: outside_commands.broken cannot be read)"
    assert summary("outside_commands.absent:run") == "(not usable: module outside_commands.absent is missing)"


def test_another_distribution_cannot_replace_our_commands() -> None:
    ours = cli.find_commands()["verify"]
    theirs = EntryPoint("verify", "elsewhere:run", cli.GROUP)
    assert cli.find_commands([theirs, ours])["verify"] is ours
    assert cli.find_commands([ours, theirs])["verify"] is ours
