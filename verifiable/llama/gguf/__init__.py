"""GGUF files: read strictly, checked before llama.cpp sees them, and identified by their hashes."""
