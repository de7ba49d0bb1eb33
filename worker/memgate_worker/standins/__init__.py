"""Libraries that stand in for NVIDIA's: built for a torch, kept, and found again.

`find_standins` is the door; see `finding`.
"""
