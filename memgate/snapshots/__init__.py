"""PyTorch's memory snapshots: bytes -> document -> what happened on each device -> timelines.

In reading order: ``unpickling`` (the bytes, safely), ``snapshot`` (what is used of them, checked),
``history`` (what was there before the first event), ``timeline`` (the events of one device),
``doubts`` (how far it can be trusted), ``reading`` (the door).
"""
