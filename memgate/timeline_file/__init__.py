"""Timeline files, ``FILE.memgate``: what ``memgate run`` recorded of a job, for any question later.

In reading order: ``recorded`` (what is in a file), ``document`` (how it is laid out, with the rule
of each field), ``columns`` (events, labels and phases as bytes), ``writing``, ``reading`` (safe for
files of strangers), ``answers`` (what a recording says about a GPU). The format is documented in
``docs/timeline.md``.
"""
