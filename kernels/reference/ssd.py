"""Mamba-2's state space duality, in plain torch (arXiv:2405.21060, listing 1 and section 6).

A chunk is computed as a masked matrix product with its initial state carried in; a decode row takes one
step of the recurrence.
"""

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.reference.activation import softplus
from mambad.kernels.reference.slots import chunk_spans, fresh, read_state, row_spans, write_state


def _decay_between(log_decay: Tensor) -> Tensor:
    """Return exp of the sum of log_decay over (j, i] at [h, i, j], 0 where j > i: (H, L) -> (H, L, L).

    The sums are built from masked terms: differences of two running sums would cancel.
    """
    num_tokens = log_decay.shape[1]
    terms = log_decay[:, :, None].expand(-1, -1, num_tokens).tril(-1)
    return torch.exp(terms.cumsum(1)).tril()


def _scan_chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk, without the D term.

    Args:
        x: (L, H, P).
        dt: (L, H) — the final step sizes.
        A: (H,).
        B: (L, H, N).
        C: (L, H, N).
        state: (H, P, N) before the chunk.

    Returns:
        Outputs (L, H, P) and the state (H, P, N) after the chunk.
    """
    B, C = B.transpose(0, 1), C.transpose(0, 1)  # (H, L, N)
    scaled = (dt[:, :, None] * x).transpose(0, 1)  # (H, L, P)
    log_decay = (dt * A).t()
    between = _decay_between(log_decay)
    since_start = torch.exp(log_decay.cumsum(1))[:, :, None]  # (H, L, 1)
    until_end = between[:, -1, :, None]  # (H, L, 1)
    y = (C @ B.transpose(1, 2) * between) @ scaled
    y = y + since_start * (C @ state.transpose(1, 2))
    state = since_start[:, -1:] * state + scaled.transpose(1, 2) @ (until_end * B)
    return y.transpose(0, 1), state


def ssd_scan(
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
    heads_per_group = x.shape[1] // B.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for span in chunk_spans(chunks):
        x_chunk = fresh(x[span.tokens])
        dt_chunk = softplus(fresh(dt[span.tokens]) + dt_bias).clamp(*dt_limit)
        B_chunk = B[span.tokens].repeat_interleave(heads_per_group, dim=1)
        C_chunk = C[span.tokens].repeat_interleave(heads_per_group, dim=1)
        y, state = _scan_chunk(x_chunk, dt_chunk, A, B_chunk, C_chunk, read_state(ssm_state, span))
        out[span.tokens] = y + D[:, None] * x_chunk
        write_state(ssm_state, span, state)
    return out


def ssd_state_update(
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
    heads_per_group = x.shape[1] // B.shape[1]
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    for span in row_spans(read_slots, write_slots):
        x_row = fresh(x[span.tokens])[0]  # (H, P)
        dt_row = softplus(fresh(dt[span.tokens])[0] + dt_bias).clamp(*dt_limit)  # (H,)
        B_row = B[span.tokens].repeat_interleave(heads_per_group, dim=1)[0]  # (H, N)
        C_row = C[span.tokens].repeat_interleave(heads_per_group, dim=1)[0]
        decay = torch.exp(dt_row * A)[:, None, None]
        inflow = (dt_row[:, None] * x_row)[:, :, None] * B_row[:, None, :]
        state = decay * read_state(ssm_state, span) + inflow
        out[span.tokens] = (state * C_row[:, None, :]).sum(2) + D[:, None] * x_row
        write_state(ssm_state, span, state)
    return out
