"""Bytes and signatures: deterministic CBOR, keys and COSE."""
