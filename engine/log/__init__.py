"""The provider-wide log: every signed session head, in one append-only tree that anybody can follow.

An entry's life: *sequenced* when it gets its index, *integrated* when the tree's tiles hold it (both in one
transaction of the store), *published* when a signed checkpoint covers it. Format: spec/log.md.
"""
