"""The RabbitMQ dialect: AMQP 0-9-1, spoken by `ackflow serve --amqp-port`."""
