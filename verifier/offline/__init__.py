"""What an auditor checks without a model: receipts, replayed draws, rebuilt trees, fraud files."""
