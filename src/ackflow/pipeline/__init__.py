"""A data pipeline on Spark whose end-of-file messages are acknowledged only when forwarded."""

from .declaration import Pipeline, Query, Route, Table, load

__all__ = ["Pipeline", "Query", "Route", "Table", "load"]
