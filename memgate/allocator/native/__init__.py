"""The caching allocator in C++; ``hatch_build.py`` builds it, ``native_core`` calls it.

Reading order: ``sizes.h``, ``device.h``, ``blocks.h``, ``caching_allocator.h`` and ``.cpp`` (the
policy), ``segments.cpp``, ``timeline``, ``replay``, ``module.cpp`` (the binding).
"""
