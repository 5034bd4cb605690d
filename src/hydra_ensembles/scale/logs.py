"""Logs that machines read: one JSON object a line. What is logged of a request never holds its input."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Time, level, message, and the fields that were given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            about["error"] = self.formatException(record.exc_info)
        return json.dumps(about, ensure_ascii=False)


def log_as_json(level: int) -> None:
    """What this library says, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    ours = logging.getLogger("hydra_ensembles")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(level)
