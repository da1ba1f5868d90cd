"""The broker against a model of it."""
