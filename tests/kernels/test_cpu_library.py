"""What only the C kernels have: a library to load, a thread pool, and checks before addresses go to C.

What they share with the reference is tested by the other files of this folder, for both.
"""

import threading
from pathlib import Path

import pytest
import torch
from kernels_cases import ChunkOf, StateOp, conv_op, int32, make_chunks, same_bytes, scan_op, ssd_op
from torch import Tensor

from mambad.kernels.cpu import library
from mambad.kernels.cpu.build import BuildError, build_library, sources_digest
from mambad.kernels.cpu.library import LEVEL_VARIABLE, Library, LibraryError
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops

SOURCES = Path(library.__file__).parent
STATE_OPS = (conv_op(83, 4), scan_op(83, 16), ssd_op(4, 40, 2, 21))


@pytest.fixture
def cpu_ops() -> CpuOps:
    ops = load_cpu_ops(2)
    if isinstance(ops, str):
        pytest.skip(ops)
    return ops


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("op", STATE_OPS, ids=lambda op: op.name)
def test_slot_out_of_range_is_refused_before_anything_changes(cpu_ops: CpuOps, op: StateOp) -> None:
    states = op.states(3)
    before = states.clone()
    for slot in (-1, 4):
        for chunk in (ChunkOf(3, slot, 1), ChunkOf(3, None, slot), ChunkOf(3, None, 1, slot)):
            with pytest.raises(ValueError, match="out of range"):
                op.prefill(cpu_ops, op.tokens(6), states, make_chunks(ChunkOf(3, None, 2), chunk))
        for slots in ((int32(2, slot), int32(2, 1)), (int32(2, 1), int32(2, slot))):
            with pytest.raises(ValueError, match="out of range"):
                op.update(cpu_ops, op.tokens(2), states, *slots)
    assert same_bytes(states, before)


@pytest.mark.parametrize("lengths", [(65,), (5, 0), (5,), (9, -1)])
def test_chunks_that_do_not_cut_the_tokens_are_refused(cpu_ops: CpuOps, lengths: tuple[int, ...]) -> None:
    op = STATE_OPS[0]
    num_tokens = 8 if len(lengths) > 1 or lengths[0] < 64 else 65
    with pytest.raises(ValueError, match="does not cut"):
        op.prefill(
            cpu_ops,
            op.tokens(num_tokens),
            op.states(1),
            make_chunks(*(ChunkOf(length, None, 1) for length in lengths)),
        )


def test_positions_and_blocks_out_of_range_are_refused(cpu_ops: CpuOps) -> None:
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 8).unbind()
    q, k = random(1, 2, 8), random(1, 1, 8)
    for block, position, row in ((3, 0, 1), (-1, 0, 1), (1, 4, 1), (1, -1, 1), (1, 0, 2), (1, 0, -1)):
        table = int32(0, block).view(2, 1)
        caches = (k_cache, v_cache, table)
        with pytest.raises(ValueError, match=r"out of range|beyond"):
            cpu_ops.kv_write(k, k, k_cache, v_cache, int32(position), table, int32(row))
        with pytest.raises(ValueError, match=r"out of range|beyond"):
            cpu_ops.attention_prefill(q, *caches, int32(row), int32(position), int32(0, 1), 1.0)
        with pytest.raises(ValueError, match=r"out of range|beyond"):
            cpu_ops.attention_decode(q, *caches, int32(row), int32(position), 1.0)
    assert not k_cache.any()


def test_wrong_tensors_are_refused_by_name(cpu_ops: CpuOps) -> None:
    x, weight = random(3, 8), random(8)
    with pytest.raises(ValueError, match=r"weight has shape \(7,\), expected \(8,\)"):
        cpu_ops.rms_norm(x, weight[:7], 1e-5)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        cpu_ops.rms_norm(x.double(), weight, 1e-5)
    with pytest.raises(ValueError, match="num_groups = 3"):
        cpu_ops.gated_rms_norm(x, x, weight, 1e-5, 3)
    op = STATE_OPS[0]
    with pytest.raises(ValueError, match=r"read_slots is torch\.int64"):
        op.update(cpu_ops, op.tokens(1), op.states(1), torch.ones(1, dtype=torch.int64), int32(1))
    strided = op.states(3)[::2]
    with pytest.raises(ValueError, match="conv_state is changed in place"):
        op.update(cpu_ops, op.tokens(1), strided, int32(1), int32(1))


def test_more_threads_than_cores_finish_many_small_ops() -> None:
    ops = load_cpu_ops(16)
    if isinstance(ops, str):
        pytest.skip(ops)
    x = random(64, 2048)
    expected = ops.silu_mul(x)
    assert all(same_bytes(ops.silu_mul(x), expected) for _ in range(200))
    ops.close()


def test_closed_ops_refuse_to_work(cpu_ops: CpuOps) -> None:
    packed = cpu_ops.pack_linear(random(4, 4), None)
    cpu_ops.close()
    cpu_ops.close()
    with pytest.raises(RuntimeError, match="closed"):
        cpu_ops.linear(random(1, 4), packed)
    with pytest.raises(RuntimeError, match="closed"):
        cpu_ops.pack_linear(random(4, 4), None)


def test_ops_may_be_called_from_another_thread(cpu_ops: CpuOps) -> None:
    x = random(64, 2048)
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(cpu_ops.silu_mul(x)))
    thread.start()
    thread.join()
    assert same_bytes(results[0], cpu_ops.silu_mul(x))


def test_zero_threads_are_an_error() -> None:
    with pytest.raises(ValueError, match="num_threads = 0"):
        load_cpu_ops(0)


def test_unknown_level_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(load_cpu_ops(1), str):
        pytest.skip("no C kernels")
    monkeypatch.setenv(LEVEL_VARIABLE, "mmx")
    reason = load_cpu_ops(1)
    assert isinstance(reason, str)
    assert "mmx" in reason


def test_missing_and_broken_libraries_are_reasons(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="not built"):
        Library(tmp_path / "none.so")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a shared object")
    with pytest.raises(LibraryError, match="can't be loaded"):
        Library(broken)


def test_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(load_cpu_ops(1), str):
        pytest.skip("no C kernels")
    monkeypatch.setattr(library, "sources_digest", lambda _folder: "another")
    with pytest.raises(LibraryError, match="do not match their sources"):
        Library()


def test_digest_changes_with_every_source(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    before = sources_digest(tmp_path)
    (tmp_path / "a.h").write_text("")
    assert sources_digest(tmp_path) != before


def test_missing_compiler_is_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in SOURCES.glob("*.[ch]"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    before = sorted(tmp_path.iterdir())
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(BuildError, match=compiler) as raised:
            build_library(tmp_path)
        assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before
