"""The HTTP client of a memgate server."""
