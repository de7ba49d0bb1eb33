"""Runs somebody's job once without a GPU, apart from the machine; `door.py` is the door."""
