"""A folder to be put on the module search path: our stand-in for the package flash-attn.

With its metadata, by which libraries decide whether flash-attn is installed. Nothing here is
imported by memgate itself.
"""

from __future__ import annotations

from pathlib import Path

FLASH_ATTN_DIR = Path(__file__).parent
