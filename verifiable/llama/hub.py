"""A GGUF file from a model hub by name, its bytes compared with the hash that the hub publishes for it.

Speaks Hugging Face's protocol through the `huggingface-hub` package (the extra `hub`); `HF_ENDPOINT` or *endpoint*
names another server of the kind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from verifiable.errors import EngineError, PolicyError, VerificationError

Progress = Callable[[int, int], None]
"""Called with the bytes hashed and their total."""

_NAME: Final = re.compile(r"(?:hf:)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)[:/]([\w./ -]+\.gguf)", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CHUNK: Final = 1 << 20


def parse_name(text: str) -> tuple[str, str] | None:
    """("owner/repository", "file.gguf") of `hf:owner/repository/file.gguf`; None for what is meant as a path."""
    match = _NAME.fullmatch(text) if text.startswith("hf:") else None
    return None if match is None or ".." in match[2].split("/") else (match[1], match[2])


def fetch(
    repository: str,
    file: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download a file, or find it in the cache, and compare its SHA-256 with the published one.

    Raises:
        PolicyError: there is no such file, or the hub publishes no SHA-256 for it.
        EngineError: the hub can't be reached, or the extra is not installed.
        VerificationError: code `model-differs`: the bytes are not those that the hub publishes.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise EngineError("huggingface-hub is not installed", hint="Install the extra [hub].") from error
    hub: Any = huggingface_hub
    try:
        url = hub.hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
        meta = hub.get_hf_file_metadata(url, endpoint=endpoint)
        path = Path(
            hub.hf_hub_download(repository, file, revision=meta.commit_hash, endpoint=endpoint, cache_dir=cache)
        )
    except (errors.EntryNotFoundError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise PolicyError("the hub has no such file", found=f"{repository}/{file} at {revision}") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise _unreachable(error) from error
    except Exception as error:
        # The package has changed its HTTP client twice; each has exceptions of its own for a broken connection.
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "requests"):
            raise
        raise _unreachable(error) from error
    published = str(meta.etag or "")
    if not _SHA256.fullmatch(published):
        raise PolicyError("the hub publishes no SHA-256 for the file", found=f"{repository}/{file}")
    found = _digest(path, progress)
    if found != published:
        raise VerificationError(
            "the file is not the one that the hub publishes",
            code="model-differs",
            expected=f"sha256 {published}",
            found=f"sha256 {found}",
            hint=f"Remove {path} and fetch it again.",
        )
    return path


def _unreachable(error: Exception) -> EngineError:
    return EngineError("the hub can't be reached", found=str(error)[:200], hint="Is HF_ENDPOINT right?")


def _digest(path: Path, progress: Progress | None) -> str:
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()
