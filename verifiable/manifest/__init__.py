"""The provider's signed manifest: the model, the settings and the keys."""
