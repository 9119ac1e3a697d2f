"""Sidecars killed with -9 at random moments under load and started again on what they left:
acknowledged labels that were lost, detections that were counted twice, and whether the end is that
of a run that nobody disturbed. Run by `make benchmark-killed`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.killed import End, killed_round, settings, traffic, undisturbed_run

from benchmarks.machine import machine

# s between two checkpoints, and bytes of memory for frames: with little, labels find theirs on
# the disk.
VARIANTS = ((0.3, 2**28), (60.0, 2**28), (0.3, 200_000), (60.0, 200_000))
KILLS = 2  # under load in each round; some more as it starts


def main() -> int:
    """Print a line for each round and their sums; 1 where anything was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sent = traffic()
    print(machine())
    print(f"{sent.operations} messages a round; checkpoints every 0.3 s or 60 s; frames in memory")
    print("256 MiB or 0.2 MB\n")
    titles = ("round", "kills", "labels", "lost", "twice", "bit-equal", "drift", "start s", "again")
    print(" ".join(f"{title:>9}" for title in titles))
    known: dict[int, End] = {}
    kills = labels = lost = twice = unequal = 0
    for number in range(arguments.rounds):
        every, memory = VARIANTS[number % len(VARIANTS)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if memory not in known:
                calm = folder / "undisturbed"
                calm.mkdir()
                known[memory] = undisturbed_run(calm, settings(calm, every, max_bytes=memory), sent)
            config = settings(folder, every, max_bytes=memory)
            chance = random.Random(arguments.seed * 1000 + number)
            done = killed_round(folder, config, sent, known[memory], chance, KILLS)
        equal = "no: " + ", ".join(done.differs) if done.differs else "yes"
        cells = (number, done.kills, done.acknowledged, done.lost, done.twice, equal, done.drift)
        row = (*cells, f"{done.starting:.2f}", done.again)
        print(" ".join(f"{cell!s:>9}" for cell in row), flush=True)
        kills, labels, lost = kills + done.kills, labels + done.acknowledged, lost + done.lost
        twice, unequal = twice + done.twice, unequal + bool(done.differs)
    print(
        f"\n{kills} kills, {labels} acknowledged labels, {lost} lost, {twice} counted twice, "
        f"{unequal} of {arguments.rounds} rounds not bit-equal"
    )
    return int(lost + twice + unequal > 0)


if __name__ == "__main__":
    sys.exit(main())
