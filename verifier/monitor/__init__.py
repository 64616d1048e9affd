"""The log monitor: reads logs, compares what it remembers, keeps what contradicts."""
