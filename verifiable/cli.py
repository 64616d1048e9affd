"""The command `verifiable`: finds sub-commands through entry points and runs the one that was asked for.

Any installed distribution adds a sub-command by an entry point in the group ``verifiable.commands`` that names a
Typer function or a `typer.Typer`. A name of two words ("log fsck") makes a command of a group, whose other commands
may live elsewhere and need other extras. Listing them imports none of them: the one-line help is read from the source's
docstring. Only the command that is invoked is imported, so checking a receipt never waits for a web framework,
and a missing extra is reported by the command that needs it and by no other.

Exit status: 0 done; 1 a check failed; 2 the call or its input is wrong; 3 a check could not be decided; 4 the
environment does not allow it; 70 a bug of ours; 130 interrupted; 141 the reader of our output went away.
"""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from verifiable.errors import VerifiableError

GROUP: Final = "verifiable.commands"
DISTRIBUTION: Final = "verifiable-inference"

EXIT_USAGE: Final = 2
EXIT_ENVIRONMENT: Final = 4
EXIT_BUG: Final = 70  # EX_SOFTWARE of sysexits.h; Python's own 1 would read as "a check failed"
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

INDENT: Final = " " * len("error: ")

OPTIONAL: Final[Mapping[str, str]] = {
    "llama_cpp": "llama",
    "jinja2": "llama",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "sqlalchemy": "serve",
    "prometheus_client": "serve",
    "psycopg": "postgres",
    "ray": "fleet",
    "pyarrow": "fleet",
    "py_ecc": "beacon",
    "huggingface_hub": "hub",
}
"""Import name of each optional package -> the extra that brings it."""


def find_commands(entries: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """Every sub-command, by name. This distribution's own commands cannot be replaced by another distribution."""
    commands: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP) if entries is None else entries:
        ours = entry.dist is not None and entry.dist.name == DISTRIBUTION
        if ours or entry.name not in commands:
            commands[entry.name] = entry
    return dict(sorted(commands.items()))


def find_source(module: str) -> Path | None:
    """The file of a module's source, found without importing the module or the packages around it."""
    path: Sequence[str] | None = None
    origin: str | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path, origin = spec.submodule_search_locations, spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def summary(entry: EntryPoint) -> str:
    """One line of help for a command: the first line of its docstring, or of its Typer's ``help``."""
    source = find_source(entry.module)
    if source is None:
        return f"(not usable: module {entry.module} is missing)"
    try:
        body = ast.parse(source.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return f"(not usable: {entry.module} cannot be read)"
    for node in body:
        match node:
            case ast.FunctionDef(name=entry.attr):
                return first_line(ast.get_docstring(node))
            case ast.Assign(targets=[ast.Name(id=entry.attr)], value=ast.Call(keywords=keywords)):
                texts = [k.value.value for k in keywords if k.arg == "help" and isinstance(k.value, ast.Constant)]
                return first_line(str(texts[0])) if texts else ""
    return ""


def first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


def printable(text: str) -> str:
    """*text* on one line and without control characters: it may quote a file that somebody else wrote."""
    return "".join(c if c.isprintable() else " " for c in text)


def complain(message: str, hint: str | None = None) -> None:
    """Write ``error: message`` to standard error, and the hint indented below it."""
    lines = [f"error: {printable(message)}"]
    if hint:
        lines += [INDENT + printable(line) for line in hint.splitlines()]
    print("\n".join(lines), file=sys.stderr, flush=True)


def complain_of(error: VerifiableError) -> int:
    complain(error.statement, error.hint)
    return error.exit_code


def complain_of_missing(error: ModuleNotFoundError, command: str) -> int | None:
    """Name the extra that brings the missing package; None when the package is not one of the optional ones."""
    package = (error.name or "").partition(".")[0]
    extra = OPTIONAL.get(package)
    if extra is None:
        return None
    install = f"pip install '{DISTRIBUTION}[{extra}]'"
    if extra == "llama":
        # Exact audits need both sides to compute alike: the portable build is the class that machines share.
        install = f"CMAKE_ARGS=-DGGML_NATIVE=OFF {install}   (compiles llama.cpp: about five minutes)"
    complain(f"`verifiable {command}` needs the extra [{extra}]: {package} is not installed", f"Install it: {install}")
    return EXIT_ENVIRONMENT


def overview(commands: Mapping[str, EntryPoint], group: str | None = None) -> str:
    """What `verifiable --help` prints, or `verifiable GROUP --help` of commands whose names are two words."""
    width = max((len(name) for name in commands), default=0)
    lines = [
        f"Usage: verifiable {'' if group is None else f'{group} '}COMMAND [ARGS]...",
        "",
        "Serve a model with signed commitments to every token, and check what was committed.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {summary(entry)}".rstrip() for name, entry in commands.items()),
        "",
        "Options:",
        "  --version  Print the version and stop.",
        "  --help     Print this and stop. `verifiable COMMAND --help` tells what a command takes.",
    ]
    return "\n".join(lines)


def run(arguments: Sequence[str]) -> int:
    """Carry out one call and return its exit status; errors leave as exceptions."""
    commands = find_commands()
    match list(arguments):
        case []:
            print(overview(commands), file=sys.stderr)
            return EXIT_USAGE
        case ["--help" | "-h" | "help"]:
            print(overview(commands))
            return 0
        case ["--version"]:
            from verifiable import __version__

            print(f"verifiable {__version__}")
            return 0
        case [group, name, *rest] if f"{group} {name}" in commands:
            return invoke(commands[f"{group} {name}"], rest)
        case [name, *rest] if name in commands:
            return invoke(commands[name], rest)
        case [group, *rest] if rest[:1] in ([], ["--help"], ["-h"]) and (members := _members(commands, group)):
            print(overview(members, group), file=sys.stdout if rest else sys.stderr)
            return 0 if rest else EXIT_USAGE
        case [name, *rest]:
            from difflib import get_close_matches

            if rest and _members(commands, name):
                name = f"{name} {rest[0]}"
            kind = "option" if name.startswith("-") else "command"
            near = get_close_matches(name, commands, n=1, cutoff=0.7)
            hint = f"Did you mean `verifiable {near[0]}`?" if near else "`verifiable --help` lists the commands."
            complain(f"there is no {kind} {name!r}", hint)
            return EXIT_USAGE
    return EXIT_USAGE


def _members(commands: Mapping[str, EntryPoint], group: str) -> dict[str, EntryPoint]:
    return {name: entry for name, entry in commands.items() if name.startswith(f"{group} ")}


def invoke(entry: EntryPoint, arguments: Sequence[str]) -> int:
    """Import one command and run it on its arguments."""
    target = entry.load()
    import typer
    from typer.main import get_command

    if not isinstance(target, typer.Typer):
        from verifiable.commands.groups import Command

        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(entry.name, cls=Command, context_settings={"help_option_names": ["--help", "-h"]})(target)
        target = app
    command = get_command(target)
    name = f"verifiable {entry.name}"
    # The root of Typer's errors about a call; some releases take it from Click, others carry their own copy.
    call_error: type[Exception] = typer.BadParameter.__mro__[2]
    # Not command.main(): it exits with 1 on a broken pipe and on Ctrl-C, which here means that a check failed.
    try:
        with command.make_context(name, list(arguments)) as context:
            status = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except call_error as error:
        text = str(getattr(error, "format_message", error.__str__)())
        if "\n" in text:  # a group of commands, called without any, answers with its whole help
            print(text, file=sys.stderr)
        else:
            complain(text, f"`{name} --help` tells what it takes.")
        return EXIT_USAGE
    return status if isinstance(status, int) and not isinstance(status, bool) else 0


def abandon_output() -> None:
    """Let what is still buffered for a reader that went away be dropped, at exit too, without a complaint."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is closed, or is no file of the system's
        sys.stdout = io.StringIO()


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: run the call, turn every error into one line and an exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):  # our own signs too are more than some terminals can show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        abandon_output()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("VERIFIABLE_DEBUG") == "1":
            raise
        return explain(error, arguments[0] if arguments else "")


def explain(error: Exception, command: str) -> int:
    """Say in one line, and a hint, why *command* ended; returns the exit status."""
    match error:
        case VerifiableError():
            return complain_of(error)
        case ModuleNotFoundError() if (status := complain_of_missing(error, command)) is not None:
            return status
        case OSError(strerror=str(reason)):
            where = f"{error.filename}: " if error.filename is not None else ""
            complain(f"{where}{reason}")
            return EXIT_ENVIRONMENT
    complain(
        f"`verifiable {command}` met a fault of its own: {type(error).__name__}: {error}",
        "Please report it. VERIFIABLE_DEBUG=1 shows where it happened.",
    )
    return EXIT_BUG
