"""A trainable GraniteMoeHybrid without experts: Mamba-2 and NoPE attention layers, each with an MLP.

Small and plain on purpose: one group, no cache, no padding, full sequences only. Module names are those
of the Hugging Face layout, so ``state_dict`` is the checkpoint. Serving has its own code in
``mambad.engine``; nothing there imports this. Mamba-2: arXiv:2405.21060, section 6 (chunked SSD).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and multipliers, named as in the Hugging Face configuration."""

    vocab_size: int = 2048
    hidden_size: int = 192
    layer_types: tuple[str, ...] = ("mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba")
    shared_intermediate_size: int = 256
    mamba_n_heads: int = 6
    mamba_d_head: int = 64
    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    mamba_chunk_size: int = 64
    num_attention_heads: int = 3
    num_key_value_heads: int = 1
    embedding_multiplier: float = 12.0
    residual_multiplier: float = 0.5
    attention_multiplier: float = 0.125
    logits_scaling: float = 1.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.05
    max_position_embeddings: int = 4096

    @property
    def inner_size(self) -> int:
        """Channels inside a Mamba mixer."""
        return self.mamba_n_heads * self.mamba_d_head


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size); returns float32 of the same shape."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def ssd(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Chunked scan of ``S_t = exp(dt_t a) S_{t-1} + dt_t x_t (x) b_t``, ``y_t = S_t c_t`` from S = 0.

    x: (B, T, H, P); dt: (B, T, H) float32, positive; a: (H) float32, negative; b, c: (B, T, N).
    T must be a multiple of ``chunk`` (zeros appended to dt change nothing). Returns (B, T, H, P) float32.
    """
    batch, length, heads, dim = x.shape
    count, states = length // chunk, b.shape[-1]
    b, c = (t.view(batch, count, chunk, states) for t in (b, c))
    decay = (dt * a).view(batch, count, chunk, heads).cumsum(2)
    x = (x * dt.unsqueeze(-1)).view(batch, count, chunk, heads, dim)

    rows = decay.permute(0, 1, 3, 2)
    future = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    mask = (rows.unsqueeze(-1) - rows.unsqueeze(-2)).masked_fill(future, -math.inf).exp()
    scores = (c @ b.transpose(-1, -2)).unsqueeze(2) * mask
    inside = (scores @ x.transpose(2, 3)).transpose(2, 3)

    to_end = (decay[:, :, -1:] - decay).exp()
    added = b.transpose(-1, -2) @ (x * to_end.unsqueeze(-1)).flatten(3)
    keep = decay[:, :, -1].exp().repeat_interleave(dim, dim=-1).unsqueeze(2)
    state = torch.zeros(batch, states, heads * dim)
    before = []
    for index in range(count):
        before.append(state)
        state = state * keep[:, index] + added[:, index]
    carried = (c @ torch.stack(before, 1)).view(batch, count, chunk, heads, dim)
    y = inside + carried * decay.exp().unsqueeze(-1)
    return y.reshape(batch, length, heads, dim)


class Mamba(nn.Module):
    """The Mamba-2 mixer: in_proj packs z | x | B | C | dt; the gated norm gates first."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        inner, heads = config.inner_size, config.mamba_n_heads
        channels = inner + 2 * config.mamba_d_state
        self.in_proj = nn.Linear(config.hidden_size, inner + channels + heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, config.mamba_d_conv, groups=channels)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        step = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = RMSNorm(inner, config.rms_norm_eps)
        self.out_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """u: (B, T, hidden); returns (B, T, hidden)."""
        config = self.config
        inner, states, heads = config.inner_size, config.mamba_d_state, config.mamba_n_heads
        z, xbc, dt = torch.split(self.in_proj(u), [inner, inner + 2 * states, heads], dim=-1)
        x, b, c = torch.split(F.silu(self._conv(xbc)), [inner, states, states], dim=-1)
        x = x.reshape(*x.shape[:2], heads, config.mamba_d_head)
        dt = F.softplus(dt.float() + self.dt_bias)
        y = ssd(x, dt, -self.A_log.exp(), b, c, config.mamba_chunk_size) + x * self.D.unsqueeze(-1)
        out: Tensor = self.out_proj(self.norm(y.flatten(2) * F.silu(z)))
        return out

    def _conv(self, x: Tensor) -> Tensor:
        """Causal depthwise convolution over time; x: (B, T, channels)."""
        width, length = self.config.mamba_d_conv, x.shape[1]
        padded = F.pad(x, (0, 0, width - 1, 0))
        weight = self.conv1d.weight.squeeze(1)
        out = self.conv1d.bias
        assert out is not None
        for tap in range(width):
            out = torch.addcmul(out, padded[:, tap : tap + length], weight[:, tap])
        return out


class Attention(nn.Module):
    """Causal grouped-query attention without position embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        queries = config.num_attention_heads * self.head_dim
        keys = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """u: (B, T, hidden); returns (B, T, hidden)."""
        q, k, v = (
            proj(u).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.config.attention_multiplier, enable_gqa=True
        )
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class SharedMLP(nn.Module):
    """silu(gate) * up, both packed in input_linear (gate first), then output_linear."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_linear = nn.Linear(config.hidden_size, 2 * config.shared_intermediate_size, bias=False)
        self.output_linear = nn.Linear(config.shared_intermediate_size, config.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """u: (B, T, hidden); returns (B, T, hidden)."""
        gate, up = self.input_linear(u).chunk(2, dim=-1)
        out: Tensor = self.output_linear(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    """One pre-norm layer: a mixer and the MLP, both scaled before they join the residual stream."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.shared_mlp = SharedMLP(config)
        self.kind = kind
        if kind == "mamba":
            self.mamba = Mamba(config)
        else:
            self.self_attn = Attention(config)
        self.scale = config.residual_multiplier

    def forward(self, h: Tensor, dropout: float) -> Tensor:
        """h: (B, T, hidden) float32; ``dropout`` acts on both branches while training."""
        mixer = self.mamba if self.kind == "mamba" else self.self_attn
        h = h + self.scale * F.dropout(mixer(self.input_layernorm(h)), dropout, self.training)
        return h + self.scale * F.dropout(
            self.shared_mlp(self.post_attention_layernorm(h)), dropout, self.training
        )


class Backbone(nn.Module):
    """Embedding, layers and final norm, under the prefix ``model.`` of the checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DemoModel(nn.Module):
    """The whole language model; the output matrix is the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                fan_in = 1 / math.sqrt(weight.shape[1])
                nn.init.normal_(weight, std=config.initializer_range if "embed" in name else fan_in)

    def forward(self, ids: Tensor, dropout: float = 0.0) -> Tensor:
        """ids: (B, T) int64, T a multiple of the chunk size; returns logits (B, T, V)."""
        embedding = self.model.embed_tokens.weight
        h = F.embedding(ids, embedding) * self.config.embedding_multiplier
        for layer in self.model.layers:
            h = layer(h, dropout)
        return F.linear(self.model.norm(h), embedding) / self.config.logits_scaling
