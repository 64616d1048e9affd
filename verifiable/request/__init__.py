"""Canonical requests: the one form in which what a client asked is parsed, hashed and stored."""
