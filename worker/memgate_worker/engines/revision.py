"""The number of the engines: the same number, the same events for the same job.

It is part of every ``RunKey``, so raising it invalidates every cache of what the old engines did.
``tests/unit/worker/test_revision.py`` fails when a source that decides events has changed since the
number was last considered, and says what to do.
"""

from __future__ import annotations

#: raise it when a job's events, labels, notes or doubts may differ from those of the last number
ENGINE_REVISION = 14
