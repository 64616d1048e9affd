"""The commands of the auditor, one file for each: what a user types becomes calls of the rooms below."""
