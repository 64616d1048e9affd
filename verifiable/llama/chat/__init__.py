"""Conversations, tools and templates to a model's token ids."""
