"""NATS JetStream: consumers with a configuration, and `fetch`, in Python only.

A consumer is a shared group with JetStream's defaults. It uses the core's verbs as they are, so
this folder holds no verbs and no HTTP routes, only `consumer`.
"""
