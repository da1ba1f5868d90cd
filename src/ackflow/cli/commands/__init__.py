"""The commands of `ackflow`, one module for each group of them."""
