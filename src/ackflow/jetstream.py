"""Consumers in the style of NATS JetStream."""

from .dialects.jetstream.consumer import (
    AwaitedConsumer,
    Consumer,
    ConsumerConfig,
    awaited_consumer,
    consumer,
)

__all__ = ["AwaitedConsumer", "Consumer", "ConsumerConfig", "awaited_consumer", "consumer"]
