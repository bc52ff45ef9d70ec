"""How log lines look, in the front end and in the engine process: text, or JSON with fixed fields.

Owns the root logger's handler, once a process. What is logged is up to the modules; a record's extra
attributes named in `FIELDS` are shown. Whatever a line tells of comes out on one line, without control
characters and without credentials; only a traceback takes more lines, each of them indented. No torch.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable

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
    "prompt",
)
"""Extra attributes of a record that are shown, after `ts level logger event`."""

INDENT = "    "

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, marks that turn the direction of text, halves of surrogates."""

_NEEDS_QUOTES = re.compile(r'[\s"=\\]|^$')

_SECRETS = (
    # To the last @ before the path: a password may hold one.
    (re.compile(r"(\b\w+://)[^/?#\s]*@"), r"\1***@"),
    (re.compile(r"(?<![\w/.%+-])[\w.%+-]{1,64}:[^\s@/:'\"]{1,256}@(?=[\w.-])"), "***@"),
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?)(?:\w+\s+)?[^\s,;'\"]+"),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(r"(?i)([?&](?:[\w-]*(?:key|token|secret|password|signature|credential)|sig)=)[^&\s'\"]+"),
        r"\1***",
    ),
    (
        re.compile(
            r"(?i)(api[-_]?key|(?:hf|auth|access|refresh)[-_]token|password|client[-_]secret)"
            r"(['\"]?\s{0,8}[:=]\s{0,8}['\"]?)[^\s,;&'\"]+"
        ),
        r"\1\2***",
    ),
    (re.compile(r"\b(sk-|hf_)[\w-]{8,}"), r"\1***"),
)
"""What a credential looks like: in a URL, a header, a query, behind its name, or by its beginning."""


class TextFormatter(logging.Formatter):
    """`time LEVEL message name=value …`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in _extras(record).items())
        line = f"{stamp} {record.levelname:<7} {_printable(redact(record.getMessage()))}{pairs}"
        traces = "\n".join(_tracebacks(self, record))
        # Indented, so that a text in an exception can't pass for a line of its own.
        return line + "".join(f"\n{INDENT}{_printable(text)}" for text in traces.split("\n") if text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is part of `event`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event = "\n".join((redact(record.getMessage()), *_tracebacks(self, record)))
        fields = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        line = json.dumps(fields | _extras(record), default=str, ensure_ascii=False)
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def set_up_logging(level: str, form: str, context: Callable[[logging.LogRecord], bool] | None = None) -> None:
    """Send this process's log to standard error.

    Args:
        level: see `set_log_level`.
        form: text or json.
        context: called with every record before it is written: adds attributes to it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    if context is not None:
        handler.addFilter(context)
    logging.getLogger().handlers = [handler]
    set_log_level(level)
    logging.captureWarnings(True)


def set_log_level(level: str) -> None:
    """Log from this level on.

    Args:
        level: debug, info, warning, error or critical: the least severity of our own lines. Libraries are
            heard from warning on, or from debug on when that is asked for.
    """
    own_level = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(own_level if level == "debug" else max(own_level, logging.WARNING))
    logging.getLogger("mambad").setLevel(own_level)


def redact(text: str) -> str:
    """Return the text with `***` in place of what looks like a credential."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _extras(record: logging.LogRecord) -> dict[str, object]:
    found = ((name, record.__dict__.get(name)) for name in FIELDS)
    return {
        name: redact(value) if isinstance(value, str) else value for name, value in found if value is not None
    }


def _tracebacks(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    texts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return [redact(text) for text in texts]


def _printable(text: str) -> str:
    return _UNSAFE.sub(lambda match: repr(match[0])[1:-1], text)


def _quoted(value: object) -> str:
    r"""Return a value of a pair; one that could be taken for several pairs stands in quotes, with `\"`."""
    text = str(value)
    return _printable(json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text)
