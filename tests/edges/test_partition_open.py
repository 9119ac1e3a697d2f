"""Few partitions are open at once, and none that was removed is taken for the one of its name."""

import pytest

from monitor.store.ledger.file import StoreFailed
from monitor.store.ledger.folder import OpenPartitions, PartitionFolder


@pytest.fixture
def folder(tmp_path):
    return PartitionFolder(tmp_path)


def test_the_one_that_was_used_the_longest_time_ago_goes_and_is_told_of_first(folder):
    told = []

    def closing(number: int) -> None:
        told.append(number)
        assert partitions.get(number) is not None

    partitions = OpenPartitions(folder, 2, closing)
    first = partitions.file(1, create=True)
    partitions.file(2, create=True)
    assert partitions.file(1) is first
    partitions.file(3, create=True)
    assert (told, len(partitions)) == ([2], 2)
    assert (partitions.get(1), partitions.get(2)) == (first, None)
    partitions.close_all()
    assert (told, len(partitions)) == ([2], 0)


def test_one_that_was_removed_is_opened_anew_unless_what_it_was_is_asked_for(folder):
    partitions = OpenPartitions(folder, 2)
    first = partitions.file(1, create=True)
    folder.set_aside(1, "corrupt")
    assert partitions.file(1, removed_too=True) is first
    with pytest.raises(StoreFailed):
        partitions.file(1)
    assert partitions.get(1) is None
    again = partitions.file(1, create=True)
    assert again.is_there and not first.is_there
    partitions.close_all()


def test_only_those_that_were_removed_are_closed_for_it(folder):
    partitions = OpenPartitions(folder, 2)
    partitions.file(1, create=True)
    kept = partitions.file(2, create=True)
    folder.remove(1)
    partitions.close_removed()
    assert (partitions.get(1), partitions.get(2)) == (None, kept)
    partitions.close_all()
