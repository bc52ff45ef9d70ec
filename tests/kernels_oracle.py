"""The recurrences of the papers as plain loops over tokens, in float64: what every kernel is held against.

Owns no tensor layout of its own: arguments are those of `mambad.kernels.ops`, for one sequence, with the
state (without the slot axis) as the last argument. Everything is float64; nothing is fast.
"""

import torch
from torch import Tensor


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
    parts = (y * silu(z)).chunk(num_groups, dim=1)
    return torch.cat([rms_norm(part, torch.ones(1), eps) for part in parts], dim=1) * weight


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    window = list(state)
    outputs = []
    for token in x:
        window.append(token)
        total = torch.zeros_like(token) if bias is None else bias.clone()
        for tap in range(weight.shape[1]):
            total += weight[:, tap] * window[tap]
        outputs.append(silu(total))
        window.pop(0)
    return torch.stack(outputs), torch.stack(window)


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    dt_bias: Tensor,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[0]):
        step = softplus(dt[t] + dt_bias)
        state = torch.exp(step * A) * state + torch.outer(B[t], step * x[t])
        outputs.append((C[t] @ state + D * x[t]) * silu(z[t]))
    return torch.stack(outputs), state


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    num_heads, num_groups = x.shape[1], B.shape[1]
    state = state.clone()
    outputs = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for h in range(num_heads):
            group = h // (num_heads // num_groups)
            step = softplus(dt[t, h] + dt_bias[h]).clamp(*dt_limit)
            state[h] = torch.exp(step * A[h]) * state[h] + step * torch.outer(x[t, h], B[t, group])
            outputs[t, h] = state[h] @ C[t, group] + D[h] * x[t, h]
    return outputs, state


def attention(q: Tensor, k: Tensor, v: Tensor, first_position: int, scale: float) -> Tensor:
    """Causal attention of queries q (L, Hq, Dh) at first_position.. over keys k (n, Hkv, Dh) at 0..n-1."""
    repeat = q.shape[1] // k.shape[1]
    outputs = torch.zeros_like(q)
    for t in range(q.shape[0]):
        num_keys = first_position + t + 1
        for h in range(q.shape[1]):
            scores = k[:num_keys, h // repeat] @ q[t, h] * scale
            outputs[t, h] = torch.softmax(scores, 0) @ v[:num_keys, h // repeat]
    return outputs
