"""Merkle trees and the transparency log (C2SP): tiles, notes, checkpoints, cosignatures and proofs."""
