"""Settings: four sources, their order, their checks, and the page that documents them."""

import dataclasses
import json
from pathlib import Path

import pytest

from mambad.engine.config import EngineConfig
from mambad.engine.errors import ConfigError
from mambad.server import config_docs
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.config_parts import app_settings, engine_config, queue_limits
from mambad.server.config_sources import load_config
from mambad.server.flag_kinds import parse_seconds, parse_size, size_text
from mambad.server.model_source import ModelSource

SOURCE = ModelSource(Path("models/tiny"), Path("models/tiny"), "tiny")
REPOSITORY = Path(__file__).parents[2]


def write(folder: Path, text: str) -> str:
    path = folder / "mambad.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- sources --------------------------------------------------------------------------------------------


def test_no_source_gives_the_defaults():
    loaded = load_config({}, {})
    assert loaded.config == ServerConfig()
    assert loaded.config.model == "demo"
    assert loaded.warnings == ()
    assert loaded.sources == {}


def test_flags_win_over_environment_over_file_over_default(tmp_path):
    file = write(tmp_path, "port: 1\nmax-num-seqs: 2\nblock-size: 32\n")
    environment = {"MAMBAD_PORT": "3", "MAMBAD_MAX_NUM_SEQS": "4"}
    loaded = load_config({"port": "5"}, environment, file)
    config = loaded.config
    assert (config.port, config.max_num_seqs, config.block_size, config.seed) == (5, 4, 32, 0)
    assert loaded.sources["port"] == "--port"
    assert loaded.sources["max_num_seqs"] == "MAMBAD_MAX_NUM_SEQS"
    assert loaded.sources["block_size"] == f"block-size in {file}:3"


def test_the_file_can_be_named_in_the_environment(tmp_path):
    file = write(tmp_path, "port: 81\n")
    loaded = load_config({}, {"MAMBAD_CONFIG": file})
    assert loaded.config.port == 81
    assert loaded.warnings == ()


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_setting_is_a_flag_a_variable_and_a_key(flag, tmp_path):
    text = (
        flag.choices[-1]
        if flag.choices
        else {"N": "7", "TOKENS": "99", "SIZE": "4096", "JSON": '{"top_k": 5}'}.get(flag.kind.word, "5")
    )
    if flag.is_switch:
        text = "true"
    by_flag = load_config({flag.name: [text] if flag.is_list else text}, {}).config
    by_variable = load_config({}, {flag.variable: text}).config
    by_key = load_config({}, {}, write(tmp_path, f"{flag.option[2:]}: {text}\n")).config
    assert by_flag == by_variable == by_key
    expected = flag.parse(text, "here")
    assert getattr(by_flag, flag.name) == ((expected,) if flag.is_list else expected)


def test_lists_are_repeated_flags_commas_in_the_environment_and_lists_in_yaml(tmp_path):
    expected = ("a", "b")
    assert load_config({"served_model_name": ["a", "b"]}, {}).config.served_model_name == expected
    assert load_config({"served_model_name": ["a,b"]}, {}).config.served_model_name == expected
    assert load_config({}, {"MAMBAD_SERVED_MODEL_NAME": "a, b"}).config.served_model_name == expected
    for text in ("served-model-name: [a, b]\n", "served_model_name:\n  - a\n  - b\n"):
        assert load_config({}, {}, write(tmp_path, text)).config.served_model_name == expected


def test_a_key_on_the_command_line_may_hold_a_comma_and_warns():
    loaded = load_config({"api_key": ["a,b"]}, {})
    assert loaded.config.api_key == ("a,b",)
    assert len(loaded.warnings) == 1
    assert "--api-key-file" in loaded.warnings[0]
    assert "a,b" not in loaded.warnings[0]


def test_yaml_values_are_read_as_they_are_written(tmp_path):
    # YAML 1.1 would make a number of 017, a switch of `off` and a float of 1e3.
    text = "served-model-name: [017, off, 1e3, null]\napi-key: 12345\nscrub-slots: yes\n"
    config = load_config({}, {}, write(tmp_path, text)).config
    assert config.served_model_name == ("017", "off", "1e3", "null")
    assert config.api_key == ("12345",)
    assert config.scrub_slots is True


def test_nothing_in_yaml_means_none_where_none_is_a_value(tmp_path):
    config = load_config({}, {}, write(tmp_path, "queue-timeout:\nrequest-timeout: ~\n")).config
    assert config.queue_timeout is None
    assert config.request_timeout is None
    with pytest.raises(ConfigError, match=r"port in .*:1: 'none': expected a whole number"):
        load_config({}, {}, write(tmp_path, "port:\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prt: 1\n", r"mambad.yaml:1: unknown key 'prt'; did you mean port\?"),
        ("port: 1\n\nport: 2\n", "mambad.yaml:3: 'port' stands twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 1\n", "mambad.yaml:2: 'max_num_seqs' stands twice"),
        ("port: [1, 2]\n", "mambad.yaml:1: port needs one value"),
        ("api-key: {a: b}\n", "mambad.yaml:1: api_key needs a list of values"),
        ("- port\n", "must hold `setting: value` lines"),
        ("port: [\n", "is no YAML: "),
        ("config: other.yaml\n", "unknown key 'config'"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config({}, {}, write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_empty_file_changes_nothing(tmp_path):
    assert load_config({}, {}, write(tmp_path, "# nothing yet\n")).config == ServerConfig()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"--config: can't read .*nowhere.yaml: No such file"):
        load_config({}, {}, str(tmp_path / "nowhere.yaml"))


def test_kubernetes_service_links_are_ignored_with_one_warning():
    environment = {
        "MAMBAD_PORT": "tcp://10.0.0.1:8000",
        "MAMBAD_SERVICE_HOST": "10.0.0.1",
        "MAMBAD_SERVICE_PORT_HTTP": "8000",
        "MAMBAD_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    loaded = load_config({}, environment)
    assert loaded.config.port == 8000
    assert loaded.sources == {}
    assert len(loaded.warnings) == 1
    assert all(name in loaded.warnings[0] for name in environment)


def test_unknown_variables_warn_and_name_the_nearest():
    loaded = load_config(
        {}, {"MAMBAD_MAX_NUM_SEQ": "1", "MAMBAD_XYZ": "1", "MAMBAD_KERNELS": "auto", "HOME": "x"}
    )
    assert loaded.config == ServerConfig()
    assert loaded.warnings == (
        "MAMBAD_MAX_NUM_SEQ is no setting of mambad; did you mean MAMBAD_MAX_NUM_SEQS?",
        "MAMBAD_XYZ is no setting of mambad",
    )


def test_an_empty_variable_is_not_set():
    assert load_config({}, {"MAMBAD_PORT": "", "MAMBAD_API_KEY": ""}).config == ServerConfig()


# ---- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("4GiB", 4 * 2**30), ("4Gi", 4 * 2**30),
        ("4G", 4 * 2**30), ("4GB", 4 * 10**9), ("4g", 4 * 10**9), ("1.5GiB", 3 * 2**29), ("25.6k", 25_600),
        ("8 MiB", 8 * 2**20), ("7B", 7),
    ],
)  # fmt: skip
def test_sizes_take_units(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "-1", "4 apples", "0.0001k", "1e3", "4Gib ps"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)


@pytest.mark.parametrize("value", [0, 1, 1000, 4096, 3 * 2**20, 4 * 2**30, 2**20 + 1])
def test_a_size_is_written_the_way_it_is_read(value):
    assert parse_size(size_text(value)) == value


def test_times_take_units():
    texts = ["60", "1.5s", "500ms", "5m", "24h"]
    assert [parse_seconds(text) for text in texts] == [60, 1.5, 0.5, 300, 86400]
    with pytest.raises(ValueError, match="expected seconds"):
        parse_seconds("5 weeks")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("port", "70000", "--port: 70000 must be from 0 to 65535"),
        ("port", "http", "--port: 'http': expected a whole number"),
        ("max_num_seqs", "0", "--max-num-seqs: 0 must be at least 1"),
        ("dtype", "float8", "--dtype: 'float8' is not among auto, float32, bfloat16"),
        ("scrub_slots", "maybe", "--scrub-slots: 'maybe': expected true or false"),
        ("kv_cache_memory_bytes", "lots", "--kv-cache-memory-bytes: 'lots': expected a number"),
        ("drain_grace", "soon", "--drain-grace: 'soon': expected seconds"),
        ("model", "", "--model: '': expected some text"),
    ],
)
def test_a_wrong_value_names_flag_value_and_limit(name, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config({name: text}, {})


def test_secrets_are_shown_nowhere():
    loaded = load_config({}, {"MAMBAD_API_KEY": "secret-1", "MAMBAD_ADMIN_API_KEY": "secret-2"})
    text = loaded.describe(only_changed=False) + loaded.describe(only_changed=True)
    assert "secret" not in text
    assert "api_key=***" in text
    assert "admin_api_key=***" in text


def test_credentials_in_urls_are_not_shown():
    loaded = load_config({"model": "https://user:password@host/x"}, {})
    assert loaded.describe(only_changed=True) == "model=https://***@host/x"


def test_the_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerConfig().port = 1  # type: ignore[misc]


# ---- parts ----------------------------------------------------------------------------------------------


def test_every_field_of_the_engine_is_a_setting():
    names = {flag.name for flag in FLAGS}
    assert set(EngineConfig.__struct_fields__) <= names


def test_the_engine_gets_every_setting_that_it_knows():
    config = ServerConfig(
        model="x", max_model_len=77, num_state_slots=3, threads=2, scheduling_policy="priority"
    )
    result = engine_config(config, SOURCE)
    assert (result.model, result.tokenizer) == ("models/tiny", "models/tiny")
    changed = {"model", "tokenizer", "async_scheduling", "data_parallel_lockstep"}
    for name in set(EngineConfig.__struct_fields__) - changed:
        assert getattr(result, name) == getattr(config, name), name


@pytest.mark.parametrize("value", [True, False])
def test_async_scheduling_is_the_engines_choice_unless_set(value):
    assert engine_config(ServerConfig(async_scheduling=value), SOURCE).async_scheduling is value
    default = EngineConfig(model="x").async_scheduling
    assert engine_config(ServerConfig(), SOURCE).async_scheduling is default


def test_a_budget_below_one_chunk_is_raised_with_a_warning(caplog):
    assert engine_config(ServerConfig(max_num_batched_tokens=8), SOURCE).max_num_batched_tokens == 64
    assert "--max-num-batched-tokens 8 is below one chunk: using 64" in caplog.text


def test_the_queue_gets_its_limits():
    limits = queue_limits(ServerConfig(max_queued_requests=1, max_queued_tokens=2, engine_stall_timeout=3.0))
    assert (limits.max_queued_requests, limits.max_queued_tokens, limits.engine_stall_timeout_s) == (
        1,
        2,
        3.0,
    )


def test_the_application_gets_names_and_the_keys_of_both_places(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfrom-file\n\n", encoding="utf-8")
    config = ServerConfig(api_key=("direct",), api_key_file=str(keys), admin_api_key_file=str(keys))
    settings = app_settings(config, SOURCE, is_loopback=False)
    assert settings.api_keys == ("direct", "from-file")
    assert settings.admin_api_keys == ("from-file",)
    assert settings.served_model_names == ("tiny",)
    assert settings.is_loopback is False
    named = app_settings(ServerConfig(served_model_name=("a", "b")), SOURCE, is_loopback=True)
    assert named.served_model_names == ("a", "b")


def test_a_key_file_that_holds_nothing_is_an_error(tmp_path):
    empty = tmp_path / "keys"
    empty.write_text("# none yet\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--api-key-file: .*keys holds no key"):
        app_settings(ServerConfig(api_key_file=str(empty)), SOURCE, is_loopback=True)
    with pytest.raises(ConfigError, match=r"--admin-api-key-file: .*gone can't be read"):
        app_settings(ServerConfig(admin_api_key_file=str(tmp_path / "gone")), SOURCE, is_loopback=True)


def test_a_json_setting_may_be_an_object_in_the_file(tmp_path):
    text = "override-generation-config:\n  temperature: 0.5\n  top_k: 3\n"
    config = load_config({}, {}, write(tmp_path, text)).config
    assert json.loads(config.override_generation_config) == {"temperature": 0.5, "top_k": 3}
    settings = app_settings(config, SOURCE, is_loopback=True)
    assert (settings.sampling_defaults.temperature, settings.sampling_defaults.top_k) == (0.5, 3)
    with pytest.raises(ConfigError, match="expected a JSON object"):
        load_config({"override_generation_config": "[1]"}, {})


# ---- documentation --------------------------------------------------------------------------------------


def test_the_page_of_settings_is_up_to_date():
    page = (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == config_docs.render(), "run `make fmt`"


def test_the_page_names_every_flag():
    page = config_docs.render()
    assert all(f"| `{flag.option}` " in page for flag in FLAGS)
