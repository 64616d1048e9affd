"""The audit of a provider: what is fetched, drawn, remembered and looked up in the log."""
