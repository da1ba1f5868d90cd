"""The command line: commands call a session and print the result."""
