"""Rehearsals of jobs without a description: `broker.py` starts them and acts on the results."""
