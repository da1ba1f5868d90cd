"""Benchmarks: Ackflow beside the table a user would write by hand, in one run. `make bench`."""
