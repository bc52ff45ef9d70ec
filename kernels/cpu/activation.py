"""What is done to each number on the C library: the gated MLP's activation, and division."""

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, check_divides, in_place, rows
from mambad.kernels.cpu.pool import Pool


def silu_mul(pool: Pool, gate_up: Tensor) -> Tensor:
    """Implement `Ops.silu_mul`."""
    check_dims("gate_up", gate_up, 2)
    num_rows, width = gate_up.shape
    check_divides("2", 2, "width of gate_up", width)
    gate_up = rows("gate_up", gate_up, (num_rows, width))
    out = pool.new((num_rows, width // 2))
    pool.call("silu_mul", num_rows, gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), width // 2)
    return out


def divide(pool: Pool, x: Tensor, divisor: float) -> None:
    """Implement `Ops.divide`."""
    check_dims("x", x, 2)
    num_rows, width = x.shape
    pool.call("divide", num_rows, in_place("x", x, x.shape), width, divisor)
