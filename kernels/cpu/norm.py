"""Root-mean-square norms on the C library."""

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, check_divides, in_place, rows, whole
from mambad.kernels.cpu.pool import Pool


def rms_norm(pool: Pool, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implement `Ops.rms_norm`."""
    check_dims("x", x, 2)
    shape = num_rows, width = x.shape
    x = rows("x", x, shape)
    weight = whole("weight", weight, (width,))
    out = pool.new(shape)
    sources = (x.data_ptr(), x.stride(0), weight.data_ptr())
    pool.call("rms_norm", num_rows, *sources, out.data_ptr(), width, eps)
    return out


def add_rms_norm(
    pool: Pool, residual: Tensor, update: Tensor, multiplier: float, weight: Tensor, eps: float
) -> Tensor:
    """Implement `Ops.add_rms_norm`."""
    check_dims("residual", residual, 2)
    shape = num_rows, width = residual.shape
    sources = (in_place("residual", residual, shape), whole("update", update, shape).data_ptr())
    weight = whole("weight", weight, (width,))
    out = pool.new(shape)
    pool.call("add_rms_norm", num_rows, *sources, weight.data_ptr(), out.data_ptr(), width, multiplier, eps)
    return out


def gated_rms_norm(pool: Pool, y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
    """Implement `Ops.gated_rms_norm`."""
    check_dims("y", y, 2)
    shape = num_rows, width = y.shape
    check_divides("num_groups", num_groups, "width", width)
    y, z = rows("y", y, shape), rows("z", z, shape)
    weight = whole("weight", weight, (width,))
    out = pool.new(shape)
    sources = (y.data_ptr(), y.stride(0), z.data_ptr(), z.stride(0), weight.data_ptr())
    pool.call("gated_rms_norm", num_rows, *sources, out.data_ptr(), width, num_groups, eps)
    return out
