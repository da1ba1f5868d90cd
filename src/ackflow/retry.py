"""The retry rule: what becomes of a message whose delivery failed or whose lease expired.

        nack or expiry ──► limit reached? ──yes──► Exhausted: dead letter
                                 │no
                                 └──► RetryAt: now + delay, else + back-off

Pure: no I/O, and no clock but the times passed in.
"""

from msgspec import Struct

from .clock import micros
from .options import Counting, DeadLetterKind, Settings


class RetryAt(Struct, frozen=True):
    """The message is delivered again from the time `at` on."""

    at: int


class Exhausted(Struct, frozen=True):
    """The message has reached a limit and becomes a dead letter."""

    kind: DeadLetterKind


def after_nack(
    rules: Settings,
    deliveries: int,
    failures: int,
    now: int,
    delay: float | None,
    counting: Counting = "failures",
) -> RetryAt | Exhausted:
    """What follows a nack; `failures` includes this one.

    `retry_limit` counts failures. A consumer may let it count redeliveries instead: the first
    delivery is not one, so one more failure is allowed.
    """
    spare = 1 if counting == "redeliveries" else 0
    if rules.retry_limit is not None and failures >= rules.retry_limit + spare:
        return Exhausted("failed")
    if deliveries_exhausted(rules, deliveries):
        return Exhausted("max_deliver")
    return RetryAt(now + micros(backoff_seconds(rules, deliveries) if delay is None else delay))


def after_expiry(rules: Settings, deliveries: int, ended: int) -> RetryAt | Exhausted:
    """What follows the expiry of a lease at `ended`, whenever it is noticed."""
    if deliveries_exhausted(rules, deliveries):
        return Exhausted("max_deliver")
    return RetryAt(ended + micros(backoff_seconds(rules, deliveries)))


def deliveries_exhausted(rules: Settings, deliveries: int) -> bool:
    """Whether `max_deliver` allows no further delivery."""
    return rules.max_deliver is not None and deliveries >= rules.max_deliver


def backoff_seconds(rules: Settings, deliveries: int) -> float:
    """Seconds to wait after the n-th delivery; the last value of the list repeats."""
    if not rules.backoff:
        return 0.0
    return rules.backoff[min(deliveries, len(rules.backoff)) - 1]
