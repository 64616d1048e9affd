"""Canonical requests: the one form in which a request is parsed, hashed and stored."""
