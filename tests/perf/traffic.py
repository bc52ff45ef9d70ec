"""What a decode step has to read at least, so that a speed can be told as a fraction of the memory's.

Counts every weight once at the nominal width of the precision, without the scales of a quantization, and the
recurrent states once read and once written in float32. Keys and values of short prompts are left out.
"""

import json
from pathlib import Path

BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
STATE_BYTES = 4


def least_bytes(folder: Path, precision: str) -> float:
    """Return the bytes of one step of one sequence."""
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    num_weights = 0
    for name, item in header.items():
        if name != "__metadata__" and len(item["shape"]) == 2 and "A_log" not in name:
            num_weights += item["shape"][0] * item["shape"][1]
    config = json.loads((folder / "config.json").read_text())
    return num_weights * BYTES[precision] + 2 * STATE_BYTES * state_elements(config)


def state_elements(config: dict) -> int:
    if config["model_type"] == "mamba":
        size = config["expand"] * config["hidden_size"] * config["state_size"]
        return size * config["num_hidden_layers"]
    if config["model_type"] == "mamba2":
        size = config["num_heads"] * config["head_dim"] * config["state_size"]
        return size * config["num_hidden_layers"]
    size = config["mamba_n_heads"] * config["mamba_d_head"] * config["mamba_d_state"]
    return size * config["layer_types"].count("mamba")
