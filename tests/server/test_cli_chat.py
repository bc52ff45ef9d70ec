"""`mambad chat` against a real server: one message, a conversation, commands, Ctrl-C."""

import io
import sys

import pytest
from toy_chat import TEMPLATE
from toy_server import FakeEngine, run_server, says, wait_until

from mambad.server import cli, cli_chat


@pytest.fixture(scope="module")
def server():
    with run_server(FakeEngine(says("<think>hm</think>Hé 😀!")), template=TEMPLATE) as running:
        yield running


def prompts(server):
    return [bytes(i - 1 for i in s.prompt_token_ids).decode() for s in server.engine.submissions]


def chat(monkeypatch, server, lines, *words):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    server.engine.submissions.clear()
    return cli.main(["chat", "--url", server.url, *words])


def test_one_message_gets_one_answer(capsys, monkeypatch, server):
    assert (
        chat(monkeypatch, server, [], "hi", "--system", "be", "--temperature", "0", "--max-tokens", "99") == 0
    )
    assert capsys.readouterr() == ("Hé 😀!\n", "")
    assert prompts(server) == ["<system>be<user>hi<bot>"]
    params = server.engine.submissions[0].params
    assert (params.max_tokens, params.temperature) == (99, 0.0)
    assert chat(monkeypatch, server, ["from", "a pipe"], "-") == 0
    assert prompts(server) == ["<user>from\na pipe\n<bot>"]


def test_a_conversation_remembers_until_it_is_told_not_to(capsys, monkeypatch, server):
    lines = [
        "one",
        "",
        "two",
        "/reset",
        "three",
        "/system be",
        "four",
        "/system",
        "five",
        "/what",
        "/exit",
        "six",
    ]
    assert chat(monkeypatch, server, lines) == 0
    assert prompts(server) == [
        "<user>one<bot>",
        "<user>one<assistant>Hé 😀!<user>two<bot>",
        "<user>three<bot>",
        "<system>be<user>four<bot>",
        "<user>five<bot>",
    ]
    out = capsys.readouterr().out
    assert out.count("Hé 😀!\n") == 5
    assert "/reset" in out


def test_thoughts_are_shown_on_a_terminal_and_never_sent_back(capsys, monkeypatch, server):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert chat(monkeypatch, server, ["one", "two"]) == 0
    assert "\x1b[2mh" in capsys.readouterr().out
    assert "hm" not in prompts(server)[-1]


def test_ctrl_c_ends_the_answer_and_not_the_program(capsys, monkeypatch):
    engine = FakeEngine(says("ab", ends=False), step_s=0.005)
    with run_server(engine, template=TEMPLATE) as server:
        shown = cli_chat.Conversation._show

        def interrupt(self, delta, pieces):
            shown(self, delta, pieces)
            if len(engine.submissions) == 1 and len(pieces) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(cli_chat.Conversation, "_show", interrupt)
        assert chat(monkeypatch, server, ["one", "two"], "--max-tokens", "6") == 0
        assert prompts(server)[-1] == "<user>one<assistant>aba<user>two<bot>"
        wait_until(lambda: engine.num_running == 0, 1)
        assert list(engine.aborted.values()) == ["disconnect"]
    assert capsys.readouterr().out == "aba\nababab\n"


def test_what_goes_wrong_is_one_line_and_exit_code_1(capsys, monkeypatch):
    with run_server() as base:
        assert chat(monkeypatch, base, [], "hi") == 1
        err = capsys.readouterr().err
        assert err.startswith(
            f"mambad: error: {base.url}/v1/chat/completions answered 400: This model has no"
        )
        assert err.count("\n") == 1
        assert chat(monkeypatch, base, ["one", "two"]) == 1
    assert chat(monkeypatch, base, [], "hi") == 1
    assert "no answer from" in capsys.readouterr().err
