"""The example at the head of spec/protocol.md: one receipt, byte for byte."""

from __future__ import annotations


def insert(text: str) -> str:
    return text
