"""Stage 5: what a timeline of requests does to a GPU's memory.

Reading order: ``sizes``, ``config`` and ``alloc_conf`` (settings), ``device``, ``pool``,
``segments``, ``caching`` (the policy), ``player``, ``replay``. Also: ``native_core``, the same in
C++; ``window``, the capacities a replay stands for; ``direct``, the second allocator;
``vectors`` and ``conformance``, which compare the simulator with recordings of the real one.
"""
