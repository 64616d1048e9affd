"""The protocol's text, and the scripts that make its test vectors."""
