"""A session and what it hands out: records, log, head, receipt, evidence, and the text that was delivered."""
