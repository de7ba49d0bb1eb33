"""The HTTP client of a memgate server; ``from memgate import Client`` is the way in.

In reading order: ``errors`` (why there is no answer), ``calls`` (requests as values),
``conversation`` (retries and waiting, without doing it), ``clients`` (one that blocks and one that
does not). ``outcome`` stands alone: it reports what a training script really took.
"""
