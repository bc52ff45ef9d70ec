"""Mamba-1's selective scan, in plain torch (arXiv:2312.00752, algorithm 2).

The recurrence is walked token by token, vectorised over states and channels; what does not depend on the
state is computed for a whole chunk first.
"""

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.reference.activation import silu, softplus
from mambad.kernels.reference.slots import Span, chunk_spans, fresh, read_state, row_spans, write_state


def _scan_span(
    tokens: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    A: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    ssm_state: Tensor,
    span: Span,
) -> Tensor:
    """Advance the span's state and return its outputs (L, E); `tokens` are x, dt, B, C and z of the call."""
    x, dt, B, C, z = (fresh(tensor[span.tokens]) for tensor in tokens)
    dt = softplus(dt + dt_bias)
    decay = torch.exp(dt[:, None, :] * A)  # (L, N, E)
    inflow = (dt * x)[:, None, :] * B[:, :, None]  # (L, N, E)
    state = read_state(ssm_state, span)
    y = torch.empty_like(x)
    for token in range(x.shape[0]):
        state = decay[token] * state + inflow[token]
        y[token] = (C[token, :, None] * state).sum(0)
    write_state(ssm_state, span, state)
    return (y + D * x) * silu(z)


def selective_scan(
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
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for span in chunk_spans(chunks):
        out[span.tokens] = _scan_span((x, dt, B, C, z), A, D, dt_bias, ssm_state, span)
    return out


def selective_state_update(
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
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    for span in row_spans(read_slots, write_slots):
        out[span.tokens] = _scan_span((x, dt, B, C, z), A, D, dt_bias, ssm_state, span)
    return out
