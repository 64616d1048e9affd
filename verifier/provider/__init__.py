"""A provider seen from outside: what it serves, the log that it publishes, and what is remembered of both."""
