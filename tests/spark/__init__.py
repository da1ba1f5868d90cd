"""Tests of the Spark connector."""
