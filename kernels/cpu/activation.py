"""The gated MLP's activation on the C library."""

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, check_divides, new, rows
from mambad.kernels.cpu.pool import Pool


def silu_mul(pool: Pool, gate_up: Tensor) -> Tensor:
    """Implement `Ops.silu_mul`."""
    check_dims("gate_up", gate_up, 2)
    num_rows, width = gate_up.shape
    check_divides("2", 2, "width of gate_up", width)
    gate_up = rows("gate_up", gate_up, (num_rows, width))
    out = new((num_rows, width // 2))
    pool.call("silu_mul", gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), num_rows, width // 2)
    return out
