"""What every HTTP route shares: access, limits, errors, the request log."""
