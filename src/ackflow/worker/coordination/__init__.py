"""What the workers of a database agree on, kept as keyed values in it."""
