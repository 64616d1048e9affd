"""The provider's private keys, and the keys that it gives to auditors."""
