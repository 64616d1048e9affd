"""The checks of receipts and evidence that need no model, and what they may end in: a verdict or a fraud file."""
