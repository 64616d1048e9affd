"""The browser's verifier: its sources, and the script that makes one page of them."""
