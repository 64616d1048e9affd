"""The provider: serves a model and commits to every token that it emits."""
