"""The HTTP client: a broker behind a server, used by a session like a local one."""
