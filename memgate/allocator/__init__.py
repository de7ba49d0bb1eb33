"""Stage 5: what a timeline of requests does to a GPU's memory.

Reading order: ``sizes``, ``config`` and ``alloc_conf`` (settings), ``device``, ``pool``,
``segments``, ``caching`` (the policy), ``replay``. Also: ``direct``, the second allocator;
``vectors`` and ``conformance``, which compare the simulator with recordings of the real one.
"""
