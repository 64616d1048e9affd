"""The numerics probe: which bits this machine computes, and whether they depend on the batch."""
