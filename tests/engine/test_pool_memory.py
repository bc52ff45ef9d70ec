"""Memory of pools: tensors like any other, large ones in huge pages."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mambad.engine.pool_memory import SMALLEST_BYTES, empty_pool

CPU = torch.device("cpu")


def flags_of(tensor: Tensor) -> list[str]:
    """Return the flags of the mapping in which the tensor lies, as Linux tells them."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            is_inside = begin <= tensor.data_ptr() < end
        elif first == "VmFlags:" and is_inside:
            return rest
    raise AssertionError("the tensor lies nowhere")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [3, SMALLEST_BYTES // 512])
def test_tensor_has_its_shape_and_keeps_what_is_written(num_rows: int, dtype: torch.dtype) -> None:
    tensor = empty_pool((2, num_rows, 256), dtype, CPU)
    assert tensor.shape == (2, num_rows, 256)
    assert tensor.dtype is dtype
    assert tensor.is_contiguous()
    tensor.fill_(1.5)
    tensor[1, -1, -1] = 2.5
    assert float(tensor[1, -1].float().sum()) == 1.5 * 255 + 2.5
    assert float(tensor[0, 0, 0]) == 1.5


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_large_pool_asks_for_huge_pages_and_shares_them_with_nobody() -> None:
    flags = flags_of(empty_pool((SMALLEST_BYTES // 4,), torch.float32, CPU))
    assert "hg" in flags
    assert "sh" not in flags
