"""The shared store: a schema in a PostgreSQL database."""
