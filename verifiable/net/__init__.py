"""The network: one HTTP client, for the two sides alone. Nothing else in the protocol may import it."""
