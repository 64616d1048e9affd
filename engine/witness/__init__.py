"""A small witness (c2sp.org/tlog-witness): it cosigns checkpoints that extend what it cosigned before."""
