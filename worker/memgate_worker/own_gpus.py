"""``MEMGATE_GPUS``: the operator's own GPUs, which every program reads as it starts.

It names a file, or is the document itself, which begins with ``{``. A service, its workers and the
processes that they start must see the same: questions name a GPU, and each of them looks it up.
What may be in it is in ``memgate.gpus.own``.
"""

from __future__ import annotations

import os
from pathlib import Path

from memgate.errors import InputError, OwnGpusError
from memgate.file_kinds import MAX_SPEC_LENGTH
from memgate.gpus import use_own_gpus
from memgate_worker.coverage import load_coverage

VARIABLE = "MEMGATE_GPUS"


def load_own_gpus() -> None:
    """Add the operator's own GPUs to the catalogue, if there are any.

    Raises:
        OwnGpusError: if the file cannot be read, or something in it is wrong.
        CoverageError: if ``MEMGATE_COVERAGE`` is wrong.
    """
    load_coverage()
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return
    # As a rule there are none, and a process that judges an upload starts sooner without these.
    from memgate.gpus.own import read_own_gpus
    from memgate.spec_text import read_text

    is_document = said.startswith("{")
    where = VARIABLE if is_document else f"{VARIABLE} is {said!r}"
    try:
        text = said if is_document else _read(Path(said))
        use_own_gpus(read_own_gpus(read_text(text)))
    except UnicodeDecodeError:
        raise OwnGpusError(f"{where}: it is not UTF-8; write YAML or JSON") from None
    except InputError as error:
        message = error.message.removeprefix(f"{said}: ")
        raise OwnGpusError(f"{where}: {message}", error.mistakes) from None


def _read(path: Path) -> str:
    from memgate.given_files import open_given_file

    with open_given_file(path) as stream:
        return stream.read(MAX_SPEC_LENGTH + 1).decode()
