"""memgate, the pure library: what a training job needs on a GPU, worked out from values alone.

No network, no files, no clock, no environment, no torch. The programs around it live in
``service`` (the doors: command line, HTTP) and ``worker`` (what runs jobs).
"""
