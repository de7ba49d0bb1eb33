"""The doors of memgate: the command line, and the HTTP service once it exists."""
