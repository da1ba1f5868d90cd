"""Extensions of a worker: limits, signals, logging, redelivery delay and validation."""
