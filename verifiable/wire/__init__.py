"""Bytes and signatures: deterministic CBOR, sealed files, text forms, keys and COSE."""
