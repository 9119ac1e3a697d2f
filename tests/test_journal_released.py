"""The disk gets back what was removed: nobody keeps a file open that is gone."""

import asyncio
from pathlib import Path

from monitor.store.ledger.journal import Journal
from tests.journalled import PLAIN, frame, settings

TURNS = 200


def removed_but_open(folder: Path) -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # it was of the listing itself
        if target.startswith(str(folder)) and target.endswith("(deleted)"):
            found.append(target)
    return found


def test_a_partition_that_was_looked_into_and_then_dropped_is_not_kept_open(tmp_path):
    folder = tmp_path / "pending"

    async def work() -> None:
        journal = Journal(settings(folder, disk_bytes=600_000), list[object]().append, PLAIN)
        journal.open(dict[int, str]().__setitem__)
        journal.covered_always()
        for number in range(1, 13):
            assert journal.note(frame(number, number, size=2000))
            assert await journal.durable(number)
            assert await journal.find("s", number, None) is not None
        assert journal.drops["budget"] > 5
        for _ in range(TURNS):
            if not removed_but_open(folder):
                break
            await asyncio.sleep(0.05)
        assert removed_but_open(folder) == []
        assert await journal.find("s", 12, None) is not None
        await journal.close()

    asyncio.run(work())
