"""The block table: host rows, staged rows, device rows."""

import pytest
import torch

from mambad.engine.block_table import BlockTable


def table(num_slots: int = 3, max_blocks: int = 4) -> BlockTable:
    return BlockTable(num_slots, max_blocks, torch.device("cpu"))


def test_all_rows_are_null_at_first() -> None:
    rows = table().rows
    assert rows.shape == (4, 4)
    assert rows.dtype == torch.int32
    assert not rows.any()


def test_update_reaches_the_device_with_the_commit_and_not_before() -> None:
    blocks = table()
    blocks.update(2, 0, [7, 8])
    assert not blocks.rows.any()
    staged = blocks.stage()
    assert not blocks.rows.any()
    blocks.commit(staged)
    assert blocks.rows.tolist() == [[0] * 4, [0] * 4, [7, 8, 0, 0], [0] * 4]


def test_later_columns_are_added_to_what_stands_there() -> None:
    blocks = table()
    blocks.update(1, 0, [7])
    blocks.commit(blocks.stage())
    blocks.update(1, 1, [9, 3])
    blocks.commit(blocks.stage())
    assert blocks.rows[1].tolist() == [7, 9, 3, 0]


def test_what_was_staged_does_not_change_with_later_updates() -> None:
    blocks = table()
    blocks.update(1, 0, [7, 8])
    first = blocks.stage()
    blocks.clear(1)
    blocks.update(1, 0, [5])
    second = blocks.stage()
    blocks.commit(first)
    assert blocks.rows[1].tolist() == [7, 8, 0, 0]
    blocks.commit(second)
    assert blocks.rows[1].tolist() == [5, 0, 0, 0]


def test_clear_sets_the_whole_row_to_null() -> None:
    blocks = table()
    blocks.update(3, 0, [1, 2, 3, 4])
    blocks.update(1, 0, [5])
    blocks.commit(blocks.stage())
    blocks.clear(3)
    assert blocks.rows[3].tolist() == [1, 2, 3, 4]
    blocks.commit(blocks.stage())
    assert blocks.rows[3].tolist() == [0] * 4
    assert blocks.rows[1].tolist() == [5, 0, 0, 0]


def test_only_changed_rows_are_written() -> None:
    blocks = table()
    blocks.update(1, 0, [5])
    blocks.update(2, 0, [6])
    blocks.commit(blocks.stage())
    blocks.rows[1] = -1
    blocks.update(2, 1, [7])
    blocks.commit(blocks.stage())
    assert blocks.rows[1].tolist() == [-1] * 4
    assert blocks.rows[2].tolist() == [6, 7, 0, 0]
    blocks.commit(blocks.stage())
    assert blocks.rows[1].tolist() == [-1] * 4


def test_device_rows_stay_at_one_address() -> None:
    blocks = table()
    address = blocks.rows.data_ptr()
    blocks.update(1, 0, [5])
    blocks.commit(blocks.stage())
    assert blocks.rows.data_ptr() == address


def test_model_without_attention_has_one_null_column() -> None:
    blocks = table(max_blocks=0)
    blocks.clear(1)
    blocks.commit(blocks.stage())
    assert blocks.rows.shape == (4, 1)
    assert not blocks.rows.any()


@pytest.mark.parametrize("slot", [-1, 0, 4])
def test_null_row_and_rows_that_do_not_exist_are_refused(slot: int) -> None:
    with pytest.raises(AssertionError):
        table().update(slot, 0, [1])
    with pytest.raises(AssertionError):
        table().clear(slot)


@pytest.mark.parametrize(("first_column", "num_blocks"), [(4, 1), (0, 5), (3, 2), (-1, 1)])
def test_columns_that_do_not_exist_are_refused(first_column: int, num_blocks: int) -> None:
    with pytest.raises(AssertionError):
        table().update(1, first_column, [1] * num_blocks)
