"""A broker at the other end of HTTP: a session works on it as on a file."""
