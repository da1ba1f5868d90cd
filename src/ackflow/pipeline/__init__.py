"""A data pipeline on Spark whose end-of-file messages are acknowledged only when forwarded."""

from .declaration import Join, Pipeline, Query, Route, Table, Top, Window, example, load

__all__ = ["Join", "Pipeline", "Query", "Route", "Table", "Top", "Window", "example", "load"]
