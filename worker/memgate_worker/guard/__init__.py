"""Keeps a command from changing files, using a GPU or losing us; `guard.py` is the door."""
