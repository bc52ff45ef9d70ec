"""Flags of vLLM without a meaning here: passed over with one warning, whatever stands around them."""

import pytest

from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS
from mambad.server.config_sources import load_config
from mambad.server.vllm_flags import SWITCHES, WITH_VALUE, drop_meaningless


def test_they_go_with_their_values_and_the_rest_stays_in_order():
    words = [
        "model",
        "--trust-remote-code",
        "--swap-space",
        "4",
        "--port",
        "1",
        "--kv-cache-dtype=auto",
        "-O",
        "3",
    ]
    assert drop_meaningless(words) == (
        ["model", "--port", "1"],
        ["--trust-remote-code", "--swap-space", "--kv-cache-dtype", "-O"],
    )


def test_switches_may_be_switched_off_and_levels_be_one_word():
    words = ["-O3", "--no-enable-chunked-prefill", "--no-trust-remote-code", "--no-docs", "-O", "2"]
    assert drop_meaningless(words) == (["--no-docs"], [*words[:3], "-O"])


def test_flags_may_be_written_with_underscores():
    kept, dropped = drop_meaningless(["--max_num_seqs=3", "--swap_space", "4", "--root-path", "a_b", "a_b"])
    assert kept == ["--max-num-seqs=3", "--root-path", "a_b", "a_b"]
    assert dropped == ["--swap-space"]


def test_one_warning_names_them_all():
    arguments, file = parse_settings("serve", "", FLAGS, ["x", "--swap-space", "4", "--disable-log-stats"])
    assert file is None
    loaded = load_config(arguments, {})
    assert loaded.warnings == ("flags of vLLM that mean nothing here: --swap-space --disable-log-stats",)
    assert loaded.config.model == "x"


def test_none_of_them_is_a_flag_of_ours():
    ours = {flag.option for flag in FLAGS} | {f"--no-{flag.option[2:]}" for flag in FLAGS}
    assert not (SWITCHES | WITH_VALUE) & ours
    assert not SWITCHES & WITH_VALUE


@pytest.mark.parametrize(
    "flag", ["--ssl-cert-reqs", "--hf-overrides", "--enable-lora", "--speculative-config"]
)
def test_what_would_change_answers_or_access_is_not_among_them(flag):
    assert drop_meaningless([flag]) == ([flag], [])
