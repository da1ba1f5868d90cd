"""Messages that an exchange routes to queues."""
