"""Pipelines to try: the coffee shop and a generator of its data."""
