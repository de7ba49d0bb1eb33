"""Stage 5: what a timeline of requests does to a GPU's memory.

Reading order: ``sizes``, ``config`` and ``alloc_conf`` (settings), ``device``, ``pool``,
``segments``, ``caching`` (the policy), ``replay``. Beside them: ``direct``, the second allocator;
``vectors`` and ``conformance``, which hold the simulator against recordings of the real one.
"""
