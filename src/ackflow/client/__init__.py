"""A broker at the other end of HTTP: the same session works on it as on a file."""
