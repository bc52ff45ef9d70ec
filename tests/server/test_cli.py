"""The command line: commands, exit codes, and errors of one line."""

from pathlib import Path

import pytest

from mambad.engine.errors import ConfigError, LoadError
from mambad.server import cli
from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.model_source import find_model


@pytest.fixture(autouse=True)
def _logging_untouched(monkeypatch):
    for command in ("serve", "check"):
        monkeypatch.setattr(f"mambad.server.cli_{command}.set_up_logging", lambda *arguments: None)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `mambad WORDS`."""
    code = cli.main(words)
    return code, *capsys.readouterr()


def test_version_is_one_line(capsys):
    code, out, err = run(capsys, "--version")
    assert (code, err) == (0, "")
    assert out.startswith("mambad ")
    assert out.count("\n") == 1


def test_version_command_names_versions_and_kernels(capsys):
    code, out, _ = run(capsys, "version")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} >= {"mambad", "python", "torch", "kernels"}


def test_help_names_every_command_and_nothing_else(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == list(cli.COMMANDS)
    assert set(cli.COMMANDS) == {"serve", "check", "complete", "chat", "bench", "version", "collect-env"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--prt", "1"], "unknown flag --prt; did you mean --port?"),
        (["serve", "--max-num-seq=1"], "unknown flag --max-num-seq; did you mean --max-num-seqs?"),
        (["--gpu-memory-utilization", "0.9"], "unknown flag --gpu-memory-utilization"),
        (["serve", "--tensor-parallel-size", "2"], "unknown flag --tensor-parallel-size"),
        (["serve", "demo", "other"], "unexpected argument 'other'; see mambad serve --help"),
        (["serve", "one", "--model", "two"], "MODEL is 'one' but --model is 'two'; give one of them"),
        (["serve", "--port"], "argument --port: expected one argument"),
        (["serve", "--port", "99999"], "--port: 99999 must be from 0 to 65535"),
        (["check", "--port", "99999"], "--port: 99999 must be from 0 to 65535"),
        (["serve", "-hf", "a/b"], "unknown flag -hf; see mambad serve --help"),
        (
            ["check", "--config", "nowhere.yaml"],
            "--config: can't read nowhere.yaml: No such file or directory",
        ),
        (["complete"], "the following arguments are required: PROMPT"),
        (["version", "x"], "unexpected argument 'x'; see mambad version --help"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("mambad: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_abbreviated_flags_are_unknown(capsys):
    code, _, err = run(capsys, "serve", "--por", "1")
    assert code == 2
    assert "unknown flag --por; did you mean --port?" in err


@pytest.mark.parametrize("word", ["chatt", "session"])
def test_a_command_that_does_not_exist_is_explained(capsys, word):
    code, _, err = run(capsys, word, "--port", "0")
    assert code == 2
    line = err.splitlines()[-1]
    assert f"'{word}' is neither a command ({', '.join(cli.COMMANDS)}), a folder here, a hub id" in line


def test_a_mistyped_command_is_named():
    with pytest.raises(ConfigError, match=r"; did you mean serve\?$"):
        find_model(ServerConfig(model="sevre"), tuple(cli.COMMANDS))


def test_flags_are_collected_as_they_were_written():
    words = ["demo", "--max-model-len", "32k", "--api-key", "a", "--api-key", "b", "--no-scrub-slots"]
    arguments, file = parse_settings("serve", "", FLAGS, [*words, "--config", "f.yaml"])
    assert arguments == {
        "model": "demo",
        "max_model_len": "32k",
        "api_key": ["a", "b"],
        "scrub_slots": False,
    }
    assert file == "f.yaml"


def test_model_as_flag_equals_the_positional():
    assert parse_settings("serve", "", FLAGS, ["--model", "x"]) == parse_settings("serve", "", FLAGS, ["x"])
    assert parse_settings("serve", "", FLAGS, ["x", "--model", "x"])[0] == {"model": "x"}


@pytest.mark.parametrize("error", [ConfigError("no good"), LoadError("no good")])
def test_faults_of_configuration_and_model_have_exit_code_2(capsys, monkeypatch, error):
    def fail(words: object) -> int:
        raise error

    monkeypatch.setattr("mambad.server.cli_version.run", fail)
    assert run(capsys, "version") == (2, "", "mambad: error: no good\n")


def test_an_interrupted_command_has_exit_code_1(capsys, monkeypatch):
    def interrupt(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mambad.server.cli_version.run", interrupt)
    assert run(capsys, "version") == (1, "", "")


def test_first_word_that_is_no_command_means_serve(monkeypatch):
    seen = []
    monkeypatch.setattr("mambad.server.cli_serve.run", lambda words: seen.append(words) or 0)
    for words in (["MODEL", "--port", "8200"], ["--port", "8200"], ["serve", "MODEL"]):
        assert cli.main(words) == 0
    assert seen == [["MODEL", "--port", "8200"], ["--port", "8200"], ["MODEL"]]


def test_a_model_folder_is_named_after_its_last_part(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path / "tiny")
    for name in (str(tmp_path / "tiny"), str(tmp_path / "tiny") + "/", "."):
        assert find_model(ServerConfig(model=name)).name == "tiny"
    monkeypatch.chdir(tmp_path)
    source = find_model(ServerConfig(model="tiny"))
    assert source.tokenizer_folder == source.folder == Path("tiny")


def test_the_tokenizer_may_stand_elsewhere(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "tokenizer").mkdir()
    config = ServerConfig(model=str(tmp_path / "model"), tokenizer=str(tmp_path / "tokenizer"))
    assert find_model(config).tokenizer_folder == tmp_path / "tokenizer"
    with pytest.raises(ConfigError, match="--tokenizer: nowhere is no folder"):
        find_model(ServerConfig(model=str(tmp_path / "model"), tokenizer="nowhere"))


def test_check_of_a_folder_that_is_no_model_is_one_line(capsys, tmp_path):
    code, out, err = run(capsys, "check", str(tmp_path))
    assert (code, out) == (2, "")
    assert f"mambad: error: {tmp_path} holds no model: config.json is missing" in err
