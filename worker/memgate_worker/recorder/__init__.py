"""Any training command, in its own environment, on a GPU that is not there.

Follow a run: ``command`` starts it, with the ``environment`` that brings in ``memgate_hook``;
``listening`` hears its processes; ``ending`` decides when it is enough; ``reading`` turns what they
wrote into the job's timeline, and ``doubts`` into what was not seen; ``failures`` says why there is
no answer.
"""
