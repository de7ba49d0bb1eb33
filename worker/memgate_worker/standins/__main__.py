"""`python -m memgate_worker.standins TORCH_DIR [SITE_PACKAGES ...]`: print where stand-ins are.

For processes of another Python, which cannot import memgate: they start this with memgate's own.
Prints one line of JSON: the fields of `Standins`, or `code` and `message` of an error, and then
exits with status 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from memgate.errors import MemgateError
from memgate_worker.standins.finding import find_standins


def main(arguments: Sequence[str]) -> int:
    """Find or build stand-ins and print them."""
    torch_dir, *places = map(Path, arguments)
    try:
        answer = asdict(find_standins(torch_dir, places))
        status = 0
    except MemgateError as error:
        answer = {"code": error.code, "message": error.message}
        status = 1
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
