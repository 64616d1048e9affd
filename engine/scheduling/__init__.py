"""Batching: one thread, one context, slots, and what runs in them."""
