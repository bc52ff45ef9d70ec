"""`mambad bench offline` on a tiny model: the table, the JSON, and a profile that adds up."""

import json

import pytest
import torch
from toy_models import toy_model

from mambad.engine.op_profile import OPS, OpProfile, moved_bytes, read_bandwidth
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps
from mambad.server import cli


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("mambad.server.cli_bench.set_up_logging", lambda level, form: None)
    monkeypatch.setattr("mambad.engine.op_profile.read_bandwidth", lambda threads: 1e9)


def bench(tmp_path, *words: str) -> dict:
    file = tmp_path / "out.json"
    sizes = ["--input-tokens", "20", "--output-tokens", "4", "--batch", "1,3"]
    common = ["--threads", "1", "--kv-cache-memory-bytes", "64MiB", "--output", str(file)]
    assert cli.main(["bench", "offline", *words, *sizes, *common]) == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize("family", ["mamba", "mamba2", "granite"])
def test_a_profile_adds_up(capsys, tmp_path, family):
    report = bench(tmp_path, str(toy_model(family).folder), "--profile")
    assert report["read_bandwidth"] == 1e9
    for run in report["runs"]:
        assert [item["kind"] for item in run["profiles"]] == ["prefill", "decode"]
        for profile in run["profiles"]:
            assert sum(item["share"] for item in profile["ops"]) == pytest.approx(1)
            assert sum(item["total_ms"] for item in profile["ops"]) == pytest.approx(profile["total_ms"])
            assert all(item["share"] > 0 for item in profile["ops"])
            assert profile["ops"][-1]["op"] == "outside the ops"
        assert run["profiles"][1]["num_steps"] == 4
    out = capsys.readouterr().out
    assert "read bandwidth, measured in this run: 1.0 GB/s" in out
    assert "decode, 3 rows" in out


def test_the_table_has_a_row_a_batch_size_and_no_profile_unless_asked_for(capsys, tmp_path):
    report = bench(tmp_path, str(toy_model("mamba2").folder))
    lines = capsys.readouterr().out.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("batch"))
    assert lines[header].split()[:4] == ["batch", "prefill", "20", "tok/s"]
    assert [line.split()[0] for line in lines[header + 1 :]] == ["1", "3"]
    assert report["read_bandwidth"] is None
    assert [run["batch"] for run in report["runs"]] == [1, 3]
    assert all(run["decode_tokens_per_s"] > 0 and run["profiles"] == [] for run in report["runs"])


def test_more_tokens_than_a_request_may_have_are_refused(capsys):
    words = [str(toy_model("mamba2").folder), "--max-model-len", "64", "--batch", "1", "--threads", "1"]
    assert cli.main(["bench", "offline", *words]) == 2
    assert "--input-tokens 64 and twice --output-tokens 64 are above" in capsys.readouterr().err


def test_every_op_is_watched_and_results_pass_through():
    assert set(OPS) == {name for name in vars(Ops) if not name.startswith("_")} - {
        "name", "reason", "record", "pack_linear",
    }  # fmt: skip
    ops, profile = ReferenceOps("test"), OpProfile()
    watched = profile.wrap(ops)
    packed = watched.pack_linear(torch.randn(3, 5), None)
    x = torch.randn(2, 5)
    assert torch.equal(watched.linear(x, packed), ops.linear(x, packed))
    assert watched.name == ops.name
    record = profile.records["linear 5 → 3"]
    assert (record.calls, record.num_bytes) == (1, packed.num_bytes)


def test_bytes_are_those_worked_out_by_hand():
    state = torch.zeros(6, 3, 7)  # 84 bytes a slot
    slots = torch.tensor([2, 0, 4], dtype=torch.int32)
    weight = torch.zeros(7, 4)  # 112 bytes
    arguments = {"weight": weight, "bias": None, "conv_state": state, "write_slots": slots}
    assert moved_bytes(arguments) == 112 + 2 * 2 * 84
    cache = torch.zeros(5, 16, 2, 8)  # 64 bytes a token
    decode = {"k_cache": cache, "positions": torch.tensor([9, 4]), "table_rows": torch.tensor([1, 0])}
    assert moved_bytes(decode) == 2 * 10 * 64
    prefill = {"k_cache": cache, "starts": torch.tensor([0, 3, 5]), "chunk_positions": torch.tensor([0, 64])}
    assert moved_bytes(prefill) == 2 * (3 + 66) * 64


def test_the_bandwidth_is_measured_with_the_threads_asked_for():
    before = torch.get_num_threads()
    assert read_bandwidth(1, num_bytes=1 << 20, rounds=1) > 1e6
    assert torch.get_num_threads() == before
