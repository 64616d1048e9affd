"""Logits to a token: top-k entries, processors and the replayable draw."""
