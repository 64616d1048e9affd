"""The command `probe`, which both sides use, and what the commands of both sides share."""
