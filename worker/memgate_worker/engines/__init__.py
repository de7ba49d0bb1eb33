"""Engines: ways to find out what a job asks of a GPU's memory, each a package."""
