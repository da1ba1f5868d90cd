"""Servers as processes of their own, to be killed."""

from ..server.conftest import start_process as start_process
