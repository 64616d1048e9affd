"""Makes spec/vectors from fixed keys and made-up data, and runs the Python implementation over them."""
