"""What runs in the processes of a job under ``memgate run``; see ``memgate_hook``.

This folder goes to the front of ``PYTHONPATH`` there, so nothing else may be in it.
"""
