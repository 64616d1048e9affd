"""Sessions: what a turn commits to, where it is stored, what is handed out of it and for how long."""
