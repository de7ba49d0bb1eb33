"""Holds estimators against measured runs: verdicts, and the equations of the xMem paper."""
