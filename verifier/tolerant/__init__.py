"""The tolerant tier: calibrated statistics where machines compute other bits."""
