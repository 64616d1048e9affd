"""The files of machine code that compute here: which they are, their hashes, and what compiled them.

What llama.cpp says of itself does not tell builds apart: the same sources with the same flags, compiled by gcc 11 and
by gcc 12, call themselves alike and compute other bits.
"""

from __future__ import annotations

import hashlib
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from verifiable.limits import COMPILER_BYTES
from verifiable.manifest.libraries import Library

_OWN: Final = re.compile(r"((?:lib)?(?:llama|ggml)(?:-[a-z0-9_-]+)?)\.(?:so|dylib|dll)[.0-9]*")
_MATHEMATICS: Final = re.compile(r"(libm|ld-musl-[a-z0-9_]+)(?:-[0-9.]+)?\.so[.0-9]*")
"""Where expf() and its like come from."""
_MAPPED: Final = Path("/proc/self/maps")
_ELF: Final = struct.Struct("<16x2HI3QI6H")
_SECTION: Final = struct.Struct("<2I4Q2I2Q")


def in_use(folder: Path) -> tuple[Library, ...]:
    """llama.cpp's files out of `folder` that this process has loaded, and the C library's of mathematical functions;
    ascending by name. Where the system does not tell what is loaded, llama.cpp's own that lie in the folder. A file
    that can't be read is left out.
    """
    folder = folder.resolve()
    paths: list[Path] = []
    with suppress(OSError):
        lines = _MAPPED.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = sorted({Path(parts[5]) for line in lines if len(parts := line.split(maxsplit=5)) == 6})
    found = {
        match[1]: path
        for path in paths or sorted(folder.iterdir())
        if (match := _OWN.fullmatch(path.name) if path.parent == folder else _MATHEMATICS.fullmatch(path.name))
    }
    libraries = []
    for name, path in sorted(found.items()):
        with suppress(OSError):
            libraries.append(Library(name, hashlib.sha256(path.read_bytes()).digest()))
    return tuple(libraries)


def compiler(folder: Path) -> str:
    """What the file that computes on the processor says of its compiler, such as "GCC: (Debian 12.2.0-14) 12.2.0".

    Empty where it does not say.
    """
    for path in sorted(folder.glob("libggml-cpu*.so")):
        with suppress(OSError, struct.error, IndexError):
            return comment(path.read_bytes())
    return ""


def comment(data: bytes) -> str:
    """The section `.comment` of an ELF file of 64 bits, little-endian, its strings joined by "; ". Empty where there is
    none. Raises struct.error or IndexError where the file is damaged.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return ""
    header = _ELF.unpack_from(data)
    offset, count, names = header[5], header[11], header[12]
    sections = [_SECTION.unpack_from(data, offset + at * _SECTION.size) for at in range(count)]
    start, size = sections[names][4:6]
    table = data[start : start + size]
    for name, _, _, _, start, size, *_ in sections:
        if table[name:].startswith(b".comment\0"):
            texts = dict.fromkeys(filter(None, data[start : start + size].split(b"\0")))
            words = "; ".join(text.decode("ascii", "ignore") for text in texts)
            return "".join(filter(str.isprintable, words))[:COMPILER_BYTES]
    return ""
