"""The model in a process of its own, and the handle on it."""
