"""`mambad collect-env`: says what a bug report needs, and no secret."""

from mambad.server import cli


def test_it_prints_the_machine_and_hides_keys(capsys, monkeypatch):
    monkeypatch.setenv("MAMBAD_API_KEY", "sesame")
    monkeypatch.setenv("MAMBAD_PORT", "8123")
    monkeypatch.setenv("OTHER_TOKEN", "sesame")
    monkeypatch.setenv("MAMBAD_APIKEY", "sesame")
    monkeypatch.setenv(
        "MAMBAD_OTLP_TRACES_ENDPOINT", "http://me:ses@sesame@col:4318/v1/traces?api-key=sesame"
    )
    assert cli.main(["collect-env"]) == 0
    out = capsys.readouterr().out
    for start in ("mambad ", "python ", "torch ", "kernels ", "  processor: ", "  MemTotal: ", "  pydantic "):
        assert f"\n{start}" in f"\n{out}", start
    assert "MAMBAD_API_KEY=***" in out
    assert "MAMBAD_PORT=8123" in out
    assert "MAMBAD_OTLP_TRACES_ENDPOINT=http://***@col:4318/v1/traces?api-key=***" in out
    assert "sesame" not in out


def test_it_takes_no_words(capsys):
    assert cli.main(["collect-env", "x"]) == 2
    assert "unexpected argument 'x'" in capsys.readouterr().err
