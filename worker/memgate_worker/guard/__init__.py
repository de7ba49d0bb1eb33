"""Keeps a command from changing files, using a GPU or losing our libraries; `guard.py` is the door."""
