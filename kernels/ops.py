"""The tensor operations of mambad: their contracts.

Owns the `Ops` protocol, whose docstrings are binding for every implementation (`reference/`, `cpu/`). It
computes nothing itself and knows no request, no model and no configuration; who computes is chosen in
`selection.py`.

Common to all ops
- Sizes: T tokens on a flat axis, B decode rows, C chunks, S slots including slot 0, D channels, E inner
  channels, N state size, K conv width, H heads, P head size, G groups, I mlp size, NB blocks including
  block 0, M columns of the block table.
- float32 throughout (weights of `pack_linear` may be bfloat16: see `linear`); indices int32,
  offsets computed in 64 bits. Activations may have any stride in their first dimension; the dimensions
  after it are packed. States, caches, tables and weights are contiguous. Outputs are new and contiguous.
- An ssm state may be bfloat16: it is widened where it is read and rounded to nearest, ties to even, where it
  is written, after a chunk or an update's row; outputs come from the numbers before rounding. (Where the
  processor has an instruction for it, numbers below the smallest normal one are rounded to 0.)
- A row's result, or a chunk's result and final state, is a function of that row or chunk and of the state
  it starts from, BIT FOR BIT: not of its neighbours, its position, their number, nor the thread count.
- States and caches are changed in place; no input aliases another one, except that a call may read and
  write one slot. One call at a time; any thread may call.
- Slot 0 and block 0 are null. In the update and decode ops a row whose write slot (or table row) is 0 is
  padding: its output is 0 and it touches no state. Two rows of one call never write the same slot, and no
  row reads a slot that another row writes.
- softplus(x) = x for x > 20, else log1p(exp(x)); silu(x) = x / (1 + exp(-x)).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.draws import DrawParams
from mambad.kernels.program import Program
from mambad.kernels.quantization import WeightFormat


class PackedLinear(Protocol):
    """A linear layer's weight and bias in the layout of the implementation that packed it; opaque."""

    @property
    def num_out(self) -> int:
        """Number of output features N."""

    @property
    def num_in(self) -> int:
        """Number of input features K."""

    @property
    def num_bytes(self) -> int:
        """Memory that the packed weight and bias take, in bytes."""


_Result = TypeVar("_Result")


class Ops(Protocol):
    """One implementation of all operations; the module docstring holds what is common to them."""

    @property
    def name(self) -> str:
        """Short name of the implementation, with its dispatch level if it has several."""

    @property
    def reason(self) -> str:
        """Why this implementation was chosen, for the log."""

    def record(
        self, function: Callable[[], _Result], progress_address: int | None = None
    ) -> tuple[Program, _Result] | None:
        """Call `function` once, noting the ops that it calls instead of computing them.

        It may call ops that take a token a row (all but the prefill ops and scans) and take views of their
        outputs; anything else that computes raises RuntimeError. All inputs must stay where they are for as
        long as the program is run; outputs that nobody holds give their memory to later ones.

        Args:
            function: called with no arguments, at the largest number of rows.
            progress_address: of a 64-bit number in which the program counts the calls that it has made.

        Returns:
            The program and the function's result, or None if this implementation can't record.
        """

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, weight_format: WeightFormat | None = None
    ) -> PackedLinear:
        """Lay out weight (N, K) float32 or bfloat16 and bias (N,) or None for `linear`; both are copied.

        With a weight_format the weight becomes integers with scales (`mambad.kernels.quantization`), and
        `linear` rounds each row of x to 8 bits with a scale for each group of inputs: max |x| / 127 of the
        group, integers to nearest even; a group below 2^-100 counts as 0. Products of integers are exact, and
        those of the groups are added in order of k. A row with NaN or an infinity gives NaN only.
        """

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """Return x @ weight^T + bias: x (T, K) -> (T, N). `packed` comes from the same implementation.

        Sums are float32. With bfloat16 weights an implementation may round x to bfloat16 (to nearest, ties to
        even) and take denormals as 0: where the processor multiplies bfloat16, that is what it multiplies.
        """

    def embed(self, table: Tensor | PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
        """Return table[token_ids] * multiplier, an embedding.

        table (V, D) float32 or bfloat16, which is widened, or a `PackedLinear` of such weights, which come
        out exactly as they were packed: a head and the embedding it is tied to need not be held twice.
        token_ids (T,) int64 -> (T, D).

        Raises:
            ValueError, IndexError: an id is not a row of the table.
        """

    def divide(self, x: Tensor, divisor: float) -> None:
        """Divide x (T, D) by the divisor, in place."""

    def draw(self, logits: Tensor, params: DrawParams) -> NDArray[np.int64]:
        """Draw a token from each row of logits (R, V), contiguous -> (R,), or -1 if a logit is not finite.

        Probabilities are those of softmax(logits / temperature). Of the kept tokens, the one is drawn where
        their running sum first exceeds the row's uniform number times their mass: in the order of ids, or,
        where top_k or top_p is less than all, from the most likely one on, ties by id.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x * rsqrt(mean(x^2) + eps) * weight, the mean taken over a row: x (T, D), weight (D,)."""

    def add_rms_norm(
        self, residual: Tensor, update: Tensor, multiplier: float, weight: Tensor, eps: float
    ) -> Tensor:
        """Add update * multiplier to residual, in place, and return the sum's `rms_norm`.

        Product and sum are rounded one after the other. residual, update (T, D), weight (D,) -> (T, D).
        """

    def gated_rms_norm(self, y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
        """Gate, then normalise, as Mamba-2 does (arXiv:2405.21060, section 7).

        g = y * silu(z); each of the num_groups runs of D / num_groups channels is divided by its own root
        mean square (eps inside the root); times weight. y, z (T, D), weight (D,) -> (T, D).
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate_up[:, :I]) * gate_up[:, I:]: gate_up (T, 2I) -> (T, I)."""

    def conv_prefill(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, chunks: Chunks
    ) -> Tensor:
        """Causal depthwise convolution, then SiLU, over chunks (arXiv:2312.00752, section 3.4).

        y[t] = silu(bias + sum_j weight[:, j] * x[t - (K-1) + j]): weight[:, K-1] multiplies the newest token.

        Args:
            x: (T, D).
            weight: (D, K), K >= 2.
            bias: (D,) or None.
            conv_state: (S, K-1, D) — inputs BEFORE the convolution, of the K-1 tokens that end at the
                state's position, oldest first, 0 before the beginning. Changed in place: a chunk shorter
                than K-1 shifts the older rows.
            chunks: where the chunks lie.

        Returns:
            (T, D).
        """

    def conv_update(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        read_slots: Tensor,
        write_slots: Tensor,
    ) -> Tensor:
        """`conv_prefill` for one token a row: x (B, D), read_slots and write_slots (B,) int32 -> (B, D)."""

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
        """Mamba-1's selective scan over chunks (arXiv:2312.00752, algorithm 2), with gate.

        dt[t] = softplus(dt[t] + dt_bias); h = exp(dt[t] * A) * h + (dt[t] * x[t]) * B[t];
        y[t] = (C[t] . h + D * x[t]) * silu(z[t]). B's step is dt * B (Euler), as in the authors' code.

        Args:
            x: (T, E).
            dt: (T, E) — before bias and softplus.
            A: (N, E) — negative, transposed so that channels are contiguous.
            B: (T, N).
            C: (T, N).
            D: (E,).
            z: (T, E).
            dt_bias: (E,).
            ssm_state: (S, N, E) float32 or bfloat16 — changed in place.
            chunks: where the chunks lie.

        Returns:
            (T, E).
        """

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
        """`selective_scan` for one token a row: x, dt, z (B, E), B, C (B, N), slots (B,) int32 -> (B, E)."""

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
        """Mamba-2's state space duality over chunks (arXiv:2405.21060, listing 1), without gate.

        dt[t] = clamp(softplus(dt[t] + dt_bias), *dt_limit); per head
        S = exp(dt[t] * A) * S + dt[t] * x[t] B[t]^T; y[t] = S C[t] + D * x[t].
        Head h uses group h // (H / G). The blocks of the paper are the given chunks.

        Args:
            x: (T, H, P).
            dt: (T, H) — before bias, softplus and clamp.
            A: (H,) — negative.
            B: (T, G, N).
            C: (T, G, N).
            D: (H,).
            dt_bias: (H,).
            dt_limit: lowest and highest step; (0.0, inf) does nothing.
            ssm_state: (S, H, P, N) float32 or bfloat16 — changed in place.
            chunks: where the chunks lie.

        Returns:
            (T, H, P).
        """

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
        """`ssd_scan` for one token a row.

        x (B, H, P), dt (B, H), B and C (B, G, N), read_slots and write_slots (B,) int32 -> (B, H, P).
        """

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
        """Store keys and values of T tokens in their blocks.

        Token t goes to offset positions[t] % block_size of block
        block_table[table_rows[t], positions[t] // block_size]; a token whose block is 0 is skipped.

        Args:
            k: (T, Hkv, Dh).
            v: (T, Hkv, Dh).
            k_cache: (NB, block_size, Hkv, Dh) — changed in place; so is v_cache, of the same shape.
            v_cache: see k_cache.
            positions: (T,) int32 — absolute position in the request.
            block_table: (S, M) int32 — row 0 is all null.
            table_rows: (T,) int32.
        """

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
        """Causal attention of chunks over cached keys and values, their own included (online softmax).

        A chunk is one query tile; key tiles are block_size absolute positions, taken in order with a running
        maximum and sum (arXiv:2205.14135, algorithm 1). Query head h uses kv head h // (Hq / Hkv).

        Args:
            q: (T, Hq, Dh).
            k_cache: (NB, block_size, Hkv, Dh); v_cache likewise. `kv_write` has run for these tokens.
            v_cache: see k_cache. What lies after a chunk's last position is not read into a result.
            block_table: (S, M) int32.
            chunk_rows: (C,) int32 — row of block_table.
            chunk_positions: (C,) int32 — absolute position of the chunk's first token.
            starts: (C + 1,) int32 — as in `Chunks`.
            scale: factor on the scores.

        Returns:
            (T, Hq, Dh).
        """

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
        """Attention of one query a row over keys 0..positions[b]: q (B, Hq, Dh) -> (B, Hq, Dh).

        table_rows and positions are (B,) int32; position is that of the query's own token, written before.
        A row with table row 0 is padding: its output is 0.
        """
