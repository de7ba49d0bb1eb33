"""Runs a command apart from the machine: `sandbox.py` is the door, `enter.py` does it."""
