"""A data pipeline on Spark whose end-of-file messages are acknowledged only when forwarded."""

from .declare import Pipeline, Query, Route, Table, load

__all__ = ["Pipeline", "Query", "Route", "Table", "load"]
