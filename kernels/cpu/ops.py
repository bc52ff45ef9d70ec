"""`CpuOps`: the ops of `mambad.kernels.ops` computed by the C library of this folder.

Joins the folder's ops, one Python file for each file of `reference/`. They check and pass tensors; the
arithmetic is in the C sources, whose declarations are in `library.py`.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu import (
    activation,
    attention,
    conv,
    embedding,
    linear,
    norm,
    quantized,
    sampling,
    selective_scan,
    ssd,
)
from mambad.kernels.cpu.library import Library, LibraryError
from mambad.kernels.cpu.linear import CpuLinear
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.cpu.program import CpuProgram
from mambad.kernels.draws import DrawParams
from mambad.kernels.ops import PackedLinear
from mambad.kernels.quantization import WeightFormat

_Result = TypeVar("_Result")


class CpuOps:
    """The ops on the CPU, with a thread pool of their own.

    One call at a time, from any thread; calls release the interpreter lock. Every op raises ValueError,
    before it changes anything, if a tensor has a wrong shape or dtype or an index is out of range.

    Attributes:
        name: "cpu-" and the dispatch level.
        reason: why it was chosen, for the log.
        level: the dispatch level, to which bit equality is bound: one of `build.LEVELS`.
        num_threads: threads that an op may use, the caller's included.
    """

    def __init__(self, library: Library, num_threads: int) -> None:
        self._pool = Pool(library, num_threads)
        self.level = library.level
        self.name = f"cpu-{library.level}"
        self.num_threads = num_threads
        note = "" if library.note is None else f"; {library.note}"
        self.reason = f"C kernels, {num_threads} thread{'s' if num_threads > 1 else ''}{note}"

    def close(self) -> None:
        """End the threads; no op may be called afterwards. Closing twice is harmless."""
        self._pool.close()

    def record(
        self, function: Callable[[], _Result], progress_address: int | None = None
    ) -> tuple[CpuProgram, _Result]:
        """Implement `Ops.record`."""
        with self._pool.recording() as recording:
            result = function()
        return CpuProgram(self._pool, recording, progress_address), result

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, weight_format: WeightFormat | None = None
    ) -> CpuLinear:
        """Implement `Ops.pack_linear`."""
        if weight_format is not None:
            return quantized.pack_quantized(self._pool, weight, bias, weight_format)
        return linear.pack_linear(self._pool, weight, bias)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """Implement `Ops.linear`."""
        return linear.linear(self._pool, x, packed)

    def embed(self, table: Tensor | PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
        """Implement `Ops.embed`."""
        if not isinstance(table, Tensor):
            return linear.embed_packed(self._pool, table, token_ids, multiplier)
        return embedding.embed_table(self._pool, table, token_ids, multiplier)

    def divide(self, x: Tensor, divisor: float) -> None:
        """Implement `Ops.divide`."""
        activation.divide(self._pool, x, divisor)

    def draw(self, logits: Tensor, params: DrawParams) -> NDArray[np.int64]:
        """Implement `Ops.draw`."""
        return sampling.draw(self._pool, logits, params)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Implement `Ops.rms_norm`."""
        return norm.rms_norm(self._pool, x, weight, eps)

    def add_rms_norm(
        self, residual: Tensor, update: Tensor, multiplier: float, weight: Tensor, eps: float
    ) -> Tensor:
        """Implement `Ops.add_rms_norm`."""
        return norm.add_rms_norm(self._pool, residual, update, multiplier, weight, eps)

    def gated_rms_norm(self, y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
        """Implement `Ops.gated_rms_norm`."""
        return norm.gated_rms_norm(self._pool, y, z, weight, eps, num_groups)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Implement `Ops.silu_mul`."""
        return activation.silu_mul(self._pool, gate_up)

    def conv_prefill(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, chunks: Chunks
    ) -> Tensor:
        """Implement `Ops.conv_prefill`."""
        return conv.conv_prefill(self._pool, x, weight, bias, conv_state, chunks)

    def conv_update(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
    ) -> Tensor:
        """Implement `Ops.conv_update`."""
        return conv.conv_update(self._pool, x, weight, bias, conv_state, read_slots, write_slots)

    def selective_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        z: Tensor,
        dt_bias: Tensor,
        ssm_state: Tensor,
        chunks: Chunks,
    ) -> Tensor:
        """Implement `Ops.selective_scan`."""
        tensors = (x, dt, A, B, C, D, z, dt_bias, ssm_state)
        return selective_scan.selective_scan(self._pool, tensors, chunks)

    def selective_state_update(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        z: Tensor,
        dt_bias: Tensor,
        ssm_state: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
    ) -> Tensor:
        """Implement `Ops.selective_state_update`."""
        tensors = (x, dt, A, B, C, D, z, dt_bias, ssm_state)
        return selective_scan.selective_state_update(self._pool, tensors, read_slots, write_slots)

    def ssd_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        dt_limit: tuple[float, float],
        ssm_state: Tensor,
        chunks: Chunks,
    ) -> Tensor:
        """Implement `Ops.ssd_scan`."""
        tensors = (x, dt, A, B, C, D, dt_bias, ssm_state)
        return ssd.ssd_scan(self._pool, tensors, dt_limit, chunks)

    def ssd_state_update(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        dt_limit: tuple[float, float],
        ssm_state: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
    ) -> Tensor:
        """Implement `Ops.ssd_state_update`."""
        tensors = (x, dt, A, B, C, D, dt_bias, ssm_state)
        return ssd.ssd_state_update(self._pool, tensors, dt_limit, read_slots, write_slots)

    def kv_write(
        self,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        positions: Tensor,
        block_table: Tensor,
        table_rows: Tensor,
    ) -> None:
        """Implement `Ops.kv_write`."""
        cache = (k_cache, v_cache, block_table)
        attention.kv_write(self._pool, k, v, cache, positions, table_rows)

    def attention_prefill(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        chunk_rows: Tensor,
        chunk_positions: Tensor,
        starts: Tensor,
        scale: float,
    ) -> Tensor:
        """Implement `Ops.attention_prefill`."""
        cache = (k_cache, v_cache, block_table)
        chunks = (chunk_rows, chunk_positions, starts)
        return attention.attention_prefill(self._pool, q, cache, chunks, scale)

    def attention_decode(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        table_rows: Tensor,
        positions: Tensor,
        scale: float,
    ) -> Tensor:
        """Implement `Ops.attention_decode`."""
        cache = (k_cache, v_cache, block_table)
        return attention.attention_decode(self._pool, q, cache, table_rows, positions, scale)


def load_cpu_ops(num_threads: int) -> CpuOps | str:
    """Return the CPU ops with num_threads threads, or half a sentence that says why they can't be had.

    Raises:
        ValueError: num_threads is not positive.
    """
    try:
        return CpuOps(Library(), num_threads)
    except LibraryError as error:
        return str(error)
