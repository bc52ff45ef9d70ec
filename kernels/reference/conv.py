"""Mamba's causal depthwise convolution with SiLU, in plain torch (arXiv:2312.00752, section 3.4)."""

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.reference.activation import silu
from mambad.kernels.reference.slots import Span, chunk_spans, read_state, row_spans, write_state


def _conv_span(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, span: Span, out: Tensor
) -> None:
    """Fill out[span.tokens] and the span's slots of conv_state."""
    inputs = torch.cat((read_state(conv_state, span), x[span.tokens]))  # (K-1+L, D)
    num_tokens = inputs.shape[0] - conv_state.shape[1]
    total = inputs.new_zeros((num_tokens, x.shape[1])) if bias is None else bias.expand(num_tokens, -1)
    for tap in range(weight.shape[1]):
        total = total + inputs[tap : tap + num_tokens] * weight[:, tap]
    out[span.tokens] = silu(total)
    write_state(conv_state, span, inputs[num_tokens:])


def conv_prefill(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, chunks: Chunks
) -> Tensor:
    """Implement `Ops.conv_prefill`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for span in chunk_spans(chunks):
        _conv_span(x, weight, bias, conv_state, span, out)
    return out


def conv_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
) -> Tensor:
    """Implement `Ops.conv_update`."""
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    for span in row_spans(read_slots, write_slots):
        _conv_span(x, weight, bias, conv_state, span, out)
    return out
