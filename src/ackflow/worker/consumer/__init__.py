"""The consumer of a worker: how messages are received, processed and settled."""
