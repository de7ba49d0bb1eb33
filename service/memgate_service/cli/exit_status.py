"""Exit status of ``memgate``: of the contract, other programs look at it.

0 done, or admitted; 1 failed; 2 bad usage or bad input; 3 rejected; 4 uncertain.
"""

from __future__ import annotations

from memgate.decision import Decision
from memgate.errors import Fault, MemgateError

FAILED = 1
BAD_INPUT = 2
#: also of ``fit`` and ``max-batch``: nothing is admitted
REJECTED = 3
UNCERTAIN = 4

#: of each decision
EXIT_STATUS = {Decision.ADMIT: 0, Decision.REJECT: REJECTED, Decision.UNCERTAIN: UNCERTAIN}


def status_of_error(error: MemgateError) -> int:
    """Return 2 if the caller can mend the question, 1 if somebody else must do something."""
    return BAD_INPUT if error.fault is Fault.CALLER else FAILED
