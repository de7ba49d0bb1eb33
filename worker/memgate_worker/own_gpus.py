"""``MEMGATE_GPUS``: the file with the operator's own GPUs, which every program reads as it starts.

A service, its workers and the processes that they start must see the same file: questions name a
GPU, and each of them looks it up. What may be in it is in ``memgate.gpus.own``.
"""

from __future__ import annotations

import os
from pathlib import Path

from memgate.errors import InputError, OwnGpusError
from memgate.given_files import open_given_file
from memgate.gpus import use_own_gpus
from memgate.gpus.own import read_own_gpus
from memgate.spec_text import MAX_SPEC_LENGTH, read_text

VARIABLE = "MEMGATE_GPUS"


def load_own_gpus() -> None:
    """Add the operator's own GPUs to the catalogue, if there are any.

    Raises:
        OwnGpusError: if the file cannot be read, or something in it is wrong.
    """
    said = os.environ.get(VARIABLE)
    if not said:
        return
    try:
        with open_given_file(Path(said)) as stream:
            content = stream.read(MAX_SPEC_LENGTH + 1)
        use_own_gpus(read_own_gpus(read_text(content.decode())))
    except UnicodeDecodeError:
        raise OwnGpusError(f"{VARIABLE} is {said!r}: it is not UTF-8; write YAML or JSON") from None
    except InputError as error:
        message = error.message.removeprefix(f"{said}: ")
        raise OwnGpusError(f"{VARIABLE} is {said!r}: {message}", error.mistakes) from None
