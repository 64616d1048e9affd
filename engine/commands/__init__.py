"""The commands of the provider, one file for each: what a user types becomes calls of the rooms below."""
