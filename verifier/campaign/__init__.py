"""The audit of a provider: what is drawn, weighed, fetched and made of it."""
