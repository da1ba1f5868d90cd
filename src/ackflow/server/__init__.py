"""The broker on HTTP: handlers translate between a dialect and the broker; they decide nothing."""
