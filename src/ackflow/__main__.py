"""`python -m ackflow` is the command line."""

from .cli.main import main

main()
