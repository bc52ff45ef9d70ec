"""How log lines look, in the front end and in the engine process: text, or JSON with fixed fields.

Owns the root logger's handler, once a process. What is logged is up to the modules; a record's extra
attributes named in `FIELDS` are shown. No torch.
"""

import json
import logging
import sys
import time

FIELDS = (
    "request_id",
    "trace_id",
    "model",
    "engine",
    "status",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_s",
    "ttft_s",
    "duration_s",
    "finish_reason",
    "client",
    "error_code",
)
"""Extra attributes of a record that are shown, after `ts level logger event`."""


class TextFormatter(logging.Formatter):
    """`time LEVEL message name=value …`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        pairs = "".join(f" {name}={value}" for name, value in _extras(record).items())
        line = f"{stamp} {record.levelname:<7} {record.getMessage()}{pairs}"
        return line + "".join(f"\n{text}" for text in _tracebacks(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is part of `event`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event = "\n".join((record.getMessage(), *_tracebacks(self, record)))
        fields = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        return json.dumps(fields | _extras(record), default=str, ensure_ascii=False)


def set_up_logging(level: str, form: str) -> None:
    """Send this process's log to standard error.

    Args:
        level: debug, info, warning, error or critical: the least severity of our own lines. Libraries are
            heard from warning on, or from debug on when that is asked for.
        form: text or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    own_level = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(own_level if level == "debug" else max(own_level, logging.WARNING))
    logging.getLogger("mambad").setLevel(own_level)
    logging.captureWarnings(True)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    found = ((name, record.__dict__.get(name)) for name in FIELDS)
    return {name: value for name, value in found if value is not None}


def _tracebacks(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    return texts + ([formatter.formatStack(record.stack_info)] if record.stack_info else [])
