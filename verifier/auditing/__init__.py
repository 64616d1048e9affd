"""The audit of one session, exactly: every check in its order, to one verdict."""
