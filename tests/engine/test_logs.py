"""Log lines as text and as JSON."""

import json
import logging

import pytest

from mambad.engine.logs import FIELDS, JsonFormatter, TextFormatter, set_up_logging


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("mambad.test").makeRecord(
        "mambad.test", logging.WARNING, "file.py", 1, message, arguments, None, extra=extra
    )


def test_text_shows_level_message_and_known_extras():
    line = TextFormatter().format(record("done: %d", 3, request_id="r1", duration_s=0.5, secret="x"))
    assert line.endswith(" WARNING done: 3 request_id=r1 duration_s=0.5")


def test_json_has_fixed_fields_and_one_line():
    line = JsonFormatter().format(record("first\nsecond é", status=200, error_code=None, other=1))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("ts") > 0
    expected = {"level": "warning", "logger": "mambad.test", "event": "first\nsecond é", "status": 200}
    assert fields == expected


def test_json_shows_every_field_of_the_interface():
    fields = json.loads(JsonFormatter().format(record("x", **dict.fromkeys(FIELDS, "v"))))
    assert list(fields) == ["ts", "level", "logger", "event", *FIELDS]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_tracebacks_are_kept(formatter):
    try:
        raise ValueError("deep down")
    except ValueError as error:
        item = record("failed")
        item.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: deep down" in formatter.format(item)


@pytest.fixture
def _logging_restored():
    root, own = logging.getLogger(), logging.getLogger("mambad")
    kept = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = kept[0], kept[1], kept[2]
    logging.captureWarnings(False)


@pytest.mark.usefixtures("_logging_restored")
@pytest.mark.parametrize(
    ("level", "ours", "libraries"),
    [("debug", "debug", "debug"), ("info", "info", "warning"), ("error", "error", "error")],
)
def test_libraries_are_heard_from_warning_on(level, ours, libraries, capsys):
    set_up_logging(level, "text")
    for name in ("debug", "info", "warning", "error"):
        logging.getLogger("mambad.x").log(getattr(logging, name.upper()), "ours-%s", name)
        logging.getLogger("library").log(getattr(logging, name.upper()), "library-%s", name)
    err = capsys.readouterr().err
    order = ["debug", "info", "warning", "error"]
    for name in order:
        assert (f"ours-{name}" in err) == (order.index(name) >= order.index(ours))
        assert (f"library-{name}" in err) == (order.index(name) >= order.index(libraries))
