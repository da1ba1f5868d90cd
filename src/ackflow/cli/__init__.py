"""The command line: it translates between a terminal and a session, and decides nothing."""
