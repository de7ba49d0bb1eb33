"""Logs: one line for each request and each job, JSON, on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up_logs() -> None:
    """Make log lines JSON. A program calls this once, when it starts."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # without the values of variables: there may be keys among them
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
