"""What constrains an answer: GBNF, JSON schemas and patterns."""
