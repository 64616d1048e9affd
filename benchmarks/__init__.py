"""The claims of this project that are numbers, each measured by one command."""
