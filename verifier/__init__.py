"""The auditor: checks receipts and evidence, and runs committed turns again."""
