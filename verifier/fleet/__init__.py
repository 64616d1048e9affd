"""Audits on many machines."""
