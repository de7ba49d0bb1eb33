"""The queue and what is kept in it."""
