"""Exit status of ``memgate``: part of the contract, since other programs check it.

0 done, or admitted; 1 failed; 2 bad usage or bad input; 3 rejected; 4 uncertain.
"""

from __future__ import annotations

from memgate.decision import Decision
from memgate.errors import Fault, MemgateError

FAILED = 1
BAD_INPUT = 2
#: also for ``fit`` and ``max-batch``: nothing is admitted
REJECTED = 3
UNCERTAIN = 4

#: for each decision
EXIT_STATUS = {Decision.ADMIT: 0, Decision.REJECT: REJECTED, Decision.UNCERTAIN: UNCERTAIN}


def status_of_error(error: MemgateError) -> int:
    """Return 2 if the caller can fix the question, 1 if somebody else must act."""
    return BAD_INPUT if error.fault is Fault.CALLER else FAILED
