"""Log lines as text and as JSON."""

import json
import logging
import time

import pytest

from mambad.engine.logs import (
    FIELDS,
    JsonFormatter,
    TextFormatter,
    redact,
    set_log_level,
    set_up_logging,
)


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


EVIL = "a\nb\r\x1b[31m\x9b2J\u2028\u202e\ud800\x00"


def test_a_line_is_one_line_without_control_characters():
    item = record(EVIL, request_id=EVIL, model=EVIL, duration_s=0.5)
    text, line = TextFormatter().format(item), JsonFormatter().format(item)
    assert text.isprintable()
    assert line.isprintable()
    assert text.count("WARNING") == 1
    fields = json.loads(line)
    assert (fields["event"], fields["request_id"]) == (EVIL, EVIL), "nothing is lost"


def test_a_value_can_not_pass_for_other_values():
    text = TextFormatter().format(record("done", request_id='r status=200 x="', model="", client="10.0.0.1"))
    assert text.endswith(r'done request_id="r status=200 x=\"" model="" client=10.0.0.1')


def test_a_text_in_an_exception_can_not_pass_for_a_line():
    try:
        raise ValueError("x\n2026-01-01 00:00:00 INFO    forged\x1b[2J")
    except ValueError as error:
        item = record("failed")
        item.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = TextFormatter().format(item).split("\n")
    assert first.endswith("failed")
    assert len(rest) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://me:secret@host/x", "GET https://***@host/x"),
        ("redis://secret@host", "redis://***@host"),
        ("http://me:p@secret@host:1/x?a=b", "http://***@host:1/x?a=b"),
        ("the endpoint is 'me:secret@host:4318'", "the endpoint is '***@host:4318'"),
        ("X-Api-Key: secret", "X-Api-Key: ***"),
        ("api_key=secret, password = 'secret'", "api_key=***, password = '***'"),
        ('{"hf_token": "secret"}', '{"hf_token": "***"}'),
        ("Authorization: Bearer secret-secret", "Authorization: ***"),
        ("{'authorization': 'Basic c2VjcmV0'}", "{'authorization': '***'}"),
        ("sent bearer secret-secret, failed", "sent bearer ***, failed"),
        ("GET /x?token=secret&a=1&api_key=secret", "GET /x?token=***&a=1&api_key=***"),
        ("X-Amz: ?X-Amz-Signature=secret", "X-Amz: ?X-Amz-Signature=***"),
        ("key sk-secret1234 and hf_secret1234", "key sk-*** and hf_***"),
    ],
)
@pytest.mark.parametrize("where", ["message", "argument", "extra", "exception"])
def test_credentials_are_not_shown(text, shown, where):
    item = record("%s" if where == "argument" else text if where == "message" else "x")
    if where == "argument":
        item.args = (text,)
    elif where == "extra":
        item.client = text
    elif where == "exception":
        item.exc_info = (ValueError, ValueError(text), None)
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(item)
        assert "secret" not in line
        assert shown in line.replace('\\"', '"') or shown in json.dumps(line)


def test_what_is_no_credential_stays():
    for text in (
        "a basic model at http://host:80/a?b=1, mail x@y.z, risk-taking, at 12:30, 127.0.0.1:80",
        "code: invalid_api_key, no --api-key-file is set, prompt_tokens=5 eos_token: </s>",
    ):
        assert redact(text) == text


def test_a_long_hostile_text_is_looked_through_in_no_time():
    start = time.perf_counter()
    for text in ("a" * 50_000, "bearer " + " " * 50_000, "authorization:" + " " * 50_000, "?" + "a" * 50_000,
                 "://" * 20_000, "a://" * 15_000, "a:" * 25_000, "a.b-" * 15_000, "api_key " * 8_000,
                 "password" + " " * 50_000, "&key" * 10_000,
                 "authorization: " + "a" * 50_000 + " "):  # fmt: skip
        redact(text)
    assert time.perf_counter() - start < 1.0


@pytest.mark.usefixtures("_logging_restored")
def test_the_level_can_change_and_every_line_can_be_given_fields(capsys):
    def add(item: logging.LogRecord) -> bool:
        item.request_id = "r1"
        return True

    set_up_logging("info", "text", add)
    logging.getLogger("mambad.x").debug("not yet")
    set_log_level("debug")
    logging.getLogger("mambad.x").debug("now")
    set_log_level("error")
    logging.getLogger("mambad.x").warning("no more")
    err = capsys.readouterr().err
    assert "now request_id=r1" in err
    assert "not yet" not in err
    assert "no more" not in err
