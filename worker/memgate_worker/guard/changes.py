"""Reduces a scratch directory to what the job made or changed, when it is to be kept.

Both ways to protect files leave traces beside that: marks of deleted and of unchanged files, and
the frame of directories that the overlays were mounted in. What remains is `files/`, with each file
under the path that the job used. Deletions are not recorded. What the marks are is in
`native/places.c` and in the kernel's documentation of overlays.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from memgate_worker.guard.guard import remove_scratch

_UNCHANGED_BITS = 0o5000
#: larger files are not copied into a frame; see `native/overlay.c`
_MAX_FRAME_BYTES = 64 << 20


def keep_changes(scratch: Path) -> None:
    """Remove from a scratch directory all that the job did not write; no process may use it."""
    files = scratch / "files"
    frame = scratch / "root"
    if frame.is_dir():
        _move_from_frame(frame, files)
    _clean(files, Path("/"))
    files.mkdir(exist_ok=True)
    for name in ("work", "root", "shm"):
        if (scratch / name).exists():
            remove_scratch(scratch / name)


def _move_from_frame(frame: Path, files: Path) -> None:
    for directory, _, names in os.walk(frame):
        for name in names:
            path = Path(directory, name)
            relative = path.relative_to(frame)
            if _is_changed(path, Path("/") / relative):
                target = files / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)


def _is_changed(path: Path, original: Path) -> bool:
    """Tell a file of the job from the copy of an original, or the place where one was mounted."""
    info = path.lstat()
    try:
        before = original.lstat()
    except OSError:
        return True
    if stat.S_ISLNK(info.st_mode) and stat.S_ISLNK(before.st_mode):
        return path.readlink() != original.readlink()
    if not stat.S_ISREG(before.st_mode) or before.st_size > _MAX_FRAME_BYTES:
        return info.st_size > 0
    return (info.st_size, info.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def _clean(directory: Path, original: Path) -> None:
    """Remove marks, links that are as they were, and directories in which nothing is left."""
    directory.chmod(0o700)
    for path in list(directory.iterdir()):
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            _clean(path, original / path.name)
        elif _is_mark(info) or (path.is_symlink() and not _is_changed(path, original / path.name)):
            path.unlink()
    if not any(directory.iterdir()) and original.is_dir():
        directory.rmdir()


def _is_mark(info: os.stat_result) -> bool:
    is_deleted = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
    return is_deleted or (info.st_mode & _UNCHANGED_BITS) == _UNCHANGED_BITS
