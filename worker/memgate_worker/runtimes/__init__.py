"""Runtimes: the library versions that jobs run with."""
