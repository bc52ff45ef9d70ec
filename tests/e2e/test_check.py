"""`mambad check` on what can't be served: exit code 2 and one line that helps."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from toy_models import copy_of, edit_json

DEMO = Path(__file__).parents[2] / "configs/demo"


def check(model: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mambad", "check", str(model), *flags]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def whole(family: str, folder: Path) -> Path:
    """Return a copy of a model with a tokenizer."""
    copy_of(family, folder)
    shutil.copy(DEMO / "tokenizer.json", folder)
    return folder


def no_model(folder: Path) -> str:
    folder.mkdir()
    (folder / "readme.txt").write_text("nothing here")
    return "config.json"


def unsupported(folder: Path) -> str:
    copy_of("granite", folder)
    edit_json(folder / "config.json", architectures=["LlamaForCausalLM"], model_type="llama")
    return "LlamaForCausalLM"


def missing_tensor(folder: Path) -> str:
    copy_of("mamba2", folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mixer.A_log"))
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    return "layers.1.mixer.A_log"


def wrong_shape(folder: Path) -> str:
    copy_of("mamba2", folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mixer.D"))
    tensors[name] = tensors[name].repeat(2)
    save_file(tensors, folder / "model.safetensors")
    return "layers.1.mixer.D"


def unexpected_tensor(folder: Path) -> str:
    copy_of("mamba2", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.7.mixer.extra"] = tensors[next(iter(tensors))].clone()
    save_file(tensors, folder / "model.safetensors")
    return "backbone.layers.7.mixer.extra"


def damaged_config(folder: Path) -> str:
    copy_of("mamba", folder)
    (folder / "config.json").write_text('{"model_type": ')
    return "config.json"


def truncated_weights(folder: Path) -> str:
    copy_of("mamba", folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    return "model.safetensors"


def no_tokenizer(folder: Path) -> str:
    copy_of("mamba", folder)
    return "tokenizer.json"


def damaged_template(folder: Path) -> str:
    whole("mamba", folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}")
    return "the chat template"


FAULTS = [
    no_model, no_tokenizer, damaged_template, unsupported, missing_tensor, wrong_shape, unexpected_tensor,
    damaged_config, truncated_weights,
]  # fmt: skip


@pytest.mark.parametrize("spoil", FAULTS, ids=[spoil.__name__ for spoil in FAULTS])
def test_a_model_that_cannot_be_served_is_named_in_one_line(
    spoil: Callable[[Path], str], tmp_path: Path
) -> None:
    named = spoil(tmp_path / "model")
    done = check(tmp_path / "model")
    assert done.returncode == 2
    message = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(message) == 1
    assert named in message[0]
    assert "Traceback" not in done.stdout


def test_a_model_that_can_be_served_is_described(tmp_path: Path) -> None:
    done = check(whole("granite", tmp_path / "model"))
    assert done.returncode == 0
    for word in ("granitemoehybrid", "slots", "blocks", "kernels", "float32"):
        assert word in done.stdout


def test_settings_that_mean_nothing_are_named(tmp_path: Path) -> None:
    done = check(whole("mamba", tmp_path / "model"), "--enable-auto-tool-choice", MAMBAD_MAX_NUM_SEQ="3")
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 2
    assert "did you mean MAMBAD_MAX_NUM_SEQS?" in warnings[0]
    assert "--enable-auto-tool-choice" in warnings[1]


def test_the_settings_of_a_server_are_checked_too(tmp_path: Path) -> None:
    folder = whole("mamba", tmp_path / "model")
    assert check(folder, "--host", "0.0.0.0", "--port", "1", "--no-console").returncode == 0
    for flags, message in (
        (("--api-key-file", "nowhere"), "--api-key-file: nowhere can't be read"),
        (
            ("--host", "0.0.0.0", "--enable-fault-injection"),
            "--enable-fault-injection is refused with",
        ),
        (("--otlp-traces-endpoint", "collector"), "--otlp-traces-endpoint is 'collector'"),
    ):
        done = check(folder, *flags)
        assert done.returncode == 2
        assert message in done.stderr


def test_weights_are_not_read_into_memory(tmp_path: Path) -> None:
    """The tensors' bytes may be anything: only the headers are looked at."""
    folder = whole("mamba", tmp_path / "model")
    data = bytearray((folder / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[header:] = b"\xff" * (len(data) - header)
    (folder / "model.safetensors").write_bytes(bytes(data))
    assert check(folder).returncode == 0
