"""GGUF files from a model hub by name, their bytes compared with the hashes that the hub publishes for them.

What a hub has is asked through the `huggingface-hub` package (the extra `hub`); `HF_ENDPOINT` or *endpoint* names
another server of the kind. Of a split model, asked for by its first part, all parts are fetched; a part that the hub
lacks is noticed before the first byte.
"""

# The bytes are fetched here and not by that package, whose hf_hub_download compares sizes but no hash before a file has
# its name, forgets what it has when its process ends, and writes whatever a server sends; http_get below it loses up to
# ten megabytes with each broken connection.

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from verifiable import files, limits
from verifiable.errors import EngineError, PolicyError, VerificationError
from verifiable.llama.probe.cache import default_folder

Progress = Callable[[int, int], None]
"""Called with the bytes that are there, compared or not yet, and their total; of all parts together."""

_NAME: Final = re.compile(r"(?:hf:)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)[:/]([\w./ -]+\.gguf)", re.ASCII)
_PART: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CHUNK: Final = 1 << 20
_ATTEMPTS: Final = 5
"""Times that a broken connection is made anew without a single new byte."""
PAUSE = 0.5
"""Seconds between two such times, once more for each."""
_SHOWN: Final = 12
"""Names that an error lists of what a repository has."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the hub says of a file: its name in the repository, SHA-256 (hex), size in bytes, and address."""

    name: str
    sha256: str
    size: int
    url: str


def parse_name(text: str) -> tuple[str, str] | None:
    """("owner/repository", "file.gguf") of `hf:owner/repository/file.gguf`; None for what is meant as a path."""
    match = _NAME.fullmatch(text) if text.startswith("hf:") else None
    return None if match is None or ".." in match[2].split("/") else (match[1], match[2])


def part_names(file: str) -> list[str]:
    """The names of all parts, given the first's; the name itself where it is no part's. Raises PolicyError."""
    match = _PART.fullmatch(file)
    if match is None:
        return [file]
    stem, number, count = match[1], int(match[2]), int(match[3])
    names = [f"{stem}-{at + 1:05}-of-{count:05}.gguf" for at in range(min(count, limits.FILES + 1))]
    if number != 1 or not 1 <= count <= limits.FILES:
        raise PolicyError(
            "that is not the first part of a model",
            expected=names[0] if 1 <= count <= limits.FILES else f"1 to {limits.FILES} parts",
            found=file,
        )
    return names


def fetch(
    repository: str,
    file: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download a model, or what of it is not there yet, and compare each file's SHA-256 with the published one.

    Args:
        repository: "owner/repository".
        file: its name there; of a split model its first part, for all of them.
        revision: a branch, tag or commit.
        cache: folder for the files; `hub` in the user's own cache folder by default.

    Returns the path of the file, or of the first part with the others beside it.

    Raises:
        PolicyError: there is no such repository, file or part, or the hub publishes no SHA-256 for it.
        EngineError: the hub can't be reached, the connection broke off, there is no room, another process fetches the
            same file, or the extra is not installed.
        VerificationError: code `model-differs`: the bytes are not those that the hub publishes. They are not kept.
    """
    files = published(repository, part_names(file), revision, endpoint)
    folder = (cache or default_folder() / "hub") / repository
    total, before = sum(each.size for each in files), 0
    for each in files:
        path = folder / each.name

        def report(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        if not _is_whole(path, each, report):
            _download(path, each, report)
        before += each.size
    return folder / files[0].name


def published(repository: str, names: Sequence[str], revision: str, endpoint: str | None) -> list[Published]:
    """What the hub says of the files, all of one commit. Raises as `fetch`."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise EngineError("huggingface-hub is not installed", hint="Install the extra [hub].") from error
    hub: Any = huggingface_hub
    listed: list[Published] = []
    missing: list[str] = []
    commit = revision
    for name in names:
        try:
            url = hub.hf_hub_url(repository, name, revision=commit, endpoint=endpoint)
            meta = hub.get_hf_file_metadata(url, endpoint=endpoint)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
            raise PolicyError("the hub has no such repository", found=f"{repository} at {revision}") from error
        except errors.EntryNotFoundError:
            missing.append(name)
            continue
        except Exception as error:
            if not _is_connection(error):
                raise
            raise EngineError(
                "the hub can't be reached", found=str(error)[:200], hint="Is HF_ENDPOINT right?"
            ) from error
        commit = meta.commit_hash or commit
        digest = str(meta.etag or "")
        if not _SHA256.fullmatch(digest) or meta.size is None:
            raise PolicyError("the hub publishes no SHA-256 for the file", found=f"{repository}/{name}")
        listed.append(Published(name, digest, int(meta.size), str(url)))
    if missing:
        raise PolicyError(
            f"the hub lacks {len(missing)} of the {len(names)} parts" if listed else "the hub has no such file",
            found=f"no {', '.join(missing[:_SHOWN])} in {repository} at {revision}",
            hint=_contents(hub, repository, revision, endpoint),
        )
    return listed


def _contents(hub: Any, repository: str, revision: str, endpoint: str | None) -> str:
    """Which models a repository has, for the hint of an error. A hub that does not say so is no further error."""
    try:
        files = hub.HfApi(endpoint=endpoint).model_info(repository, revision=revision).siblings or []
    except Exception:  # whatever it is, the error that is being made says the more important thing
        return "What the repository has can't be listed."
    names = sorted(each.rfilename for each in files if each.rfilename.endswith(".gguf"))
    firsts = [name for name in names if (match := _PART.fullmatch(name)) is None or int(match[2]) == 1]
    if not firsts:
        return "It has no GGUF files."
    more = f" and {len(firsts) - _SHOWN} more" if len(firsts) > _SHOWN else ""
    return f"It has {', '.join(firsts[:_SHOWN])}{more}."


def _is_whole(path: Path, wanted: Published, report: Callable[[int], None]) -> bool:
    """Whether the file is there already, with the published hash."""
    try:
        if path.stat().st_size != wanted.size:
            return False
        with path.open("rb") as file:
            return str(_digest(file, report).hexdigest()) == wanted.sha256
    except FileNotFoundError:
        return False
    except OSError as error:
        raise EngineError(f"cannot read {path}", found=error.strerror or error) from error


def _digest(file: IO[bytes], report: Callable[[int], None]) -> Any:
    digest, done = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        done += len(chunk)
        report(done)
    return digest


def _download(path: Path, wanted: Published, report: Callable[[int], None]) -> None:
    """Fetch what is missing of a file under another name, compare it, and only then give it its own."""
    # The hash in the name: what an earlier version of the file left behind is never gone on with.
    scratch = path.with_name(f".{path.name}.{wanted.sha256[:16]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("a+b") as file:
            _lock(file, scratch)
            if file.seek(0, os.SEEK_END) > wanted.size:
                file.truncate(0)
            _check_room(scratch, wanted.size - file.tell())
            file.seek(0)
            digest = _digest(file, report)
            sha256 = _complete(file, digest, wanted, report)
            file.flush()
            os.fsync(file.fileno())
        if sha256 != wanted.sha256:
            scratch.unlink(missing_ok=True)
            raise VerificationError(
                "the file is not the one that the hub publishes",
                code="model-differs",
                expected=f"sha256 {wanted.sha256}",
                found=f"sha256 {sha256}",
                hint=f"{wanted.name} was not kept. Fetch it again; if it differs again, tell the hub.",
            )
        files.rename(scratch, path)
    except OSError as error:
        raise EngineError(f"cannot write {scratch}", found=error.strerror or error) from error


def _complete(file: IO[bytes], digest: Any, wanted: Published, report: Callable[[int], None]) -> str:
    """Append what is missing, over as many connections as it takes; returns the SHA-256 (hex) of the whole."""
    fruitless = 0
    while (at := file.tell()) < wanted.size:
        try:
            with _ask(wanted, at) as answer:
                if answer.status_code == 200 and at:  # the server sends all of it, wanted or not
                    file.seek(0)
                    file.truncate()
                    digest = hashlib.sha256()
                for chunk in answer.iter_raw():
                    file.write(chunk)
                    digest.update(chunk)
                    report(file.tell())
                    if file.tell() > wanted.size:
                        return str(digest.hexdigest())  # not the file's, whatever comes
            trouble = EngineError("the hub sent nothing", expected=f"{wanted.size - at:,} bytes", found="none")
        except EngineError as error:
            trouble = error
        except Exception as error:
            if not _is_connection(error):
                raise
            trouble = EngineError(
                f"the connection to the hub broke off in {wanted.name}",
                expected=f"{wanted.size:,} bytes",
                found=f"{file.tell():,} bytes: {str(error)[:120]}",
                hint="Give the same command again: it goes on from there.",
            )
        fruitless = fruitless + 1 if file.tell() <= at else 0
        if fruitless >= _ATTEMPTS:
            raise trouble
        time.sleep(PAUSE * fruitless)
    return str(digest.hexdigest())


@contextmanager
def _ask(wanted: Published, at: int) -> Iterator[Any]:
    """Ask for the file from byte *at* on. Raises EngineError on an answer that is not that."""
    import huggingface_hub

    hub: Any = huggingface_hub
    headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
    if at:
        headers["Range"] = f"bytes={at}-"
    session = hub.get_session()
    with session.stream("GET", wanted.url, headers=headers, follow_redirects=True, timeout=30.0) as answer:
        goes_on = answer.headers.get("Content-Range", "").startswith(f"bytes {at}-")
        if answer.status_code != 200 and not (answer.status_code == 206 and goes_on):
            raise EngineError(
                f"the hub does not give {wanted.name}", expected="its bytes", found=f"HTTP {answer.status_code}"
            )
        yield answer


def _is_connection(error: Exception) -> bool:
    """Whether the connection failed, in the words of whichever HTTP client the package has: it changed it twice."""
    if isinstance(error, OSError):
        return error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "huggingface_hub")


def _lock(file: IO[bytes], scratch: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EngineError("another process is fetching the same file", found=scratch, hint="Wait for it.") from error


def _check_room(scratch: Path, needed: int) -> None:
    free = shutil.disk_usage(scratch.parent).free
    if needed > free:
        raise EngineError(
            "there is no room for the file", expected=f"{needed:,} bytes in {scratch.parent}", found=f"{free:,} bytes"
        )
