"""Benchmarks: Ackflow against hand-written tables and other queues, in one run. `make bench`."""
