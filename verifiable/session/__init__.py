"""A session and what it hands out: records, log, head, receipt and evidence."""
