"""Primitives of a transaction over single tables; `Tx` has all of them."""
