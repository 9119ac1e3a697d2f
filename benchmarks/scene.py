"""Makes what detectors of the benchmarks see: objects that last and move, frame after frame.

Each drives a circle of its own in one period, after which the scene is where it was: so
tracks live, the bytes are made once, and a stream may last as long as it likes.
"""

from __future__ import annotations

import numpy as np

from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space
from monitor.wire.client_messages import OutgoingFrame, encode_frame
from monitor.wire.records import read_varint, varint

SPACE = Space(
    (
        *(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
CLASSES = ("car", "pedestrian", "cyclist")
OBJECTS, RATE = 200, 20.0  # in a frame; Hz
PERIOD = 400  # frames
REACH = 60.0  # m; the scene ends there


def space_of(k: int) -> Space:
    """Takes k of the dimensions of the scene, the position first; the eighth is a speed."""
    chosen = {2: "x y", 4: "x y z yaw", 7: "x y z l w h yaw", 8: "x y z l w h yaw speed"}[k]
    known = {one.name: one for one in (*SPACE.dimensions, Dimension("speed", "m/s"))}
    return Space(tuple(known[name] for name in chosen.split()))


def frames(
    *,
    truth: bool,
    objects: int = OBJECTS,
    life: int = 0,
    bare: bool = False,
    space: Space = SPACE,
) -> list[bytes]:
    """Encodes the detections of each frame of a period; `framed` puts number and stamp in front.

    life  frames after which an object has another upstream track; 0: none has any
    bare  whether detections have a score and no covariance
    """
    random = np.random.default_rng(0)
    k = space.k
    root = random.normal(size=(objects, k, k))
    covariance = (root @ root.transpose(0, 2, 1) + np.eye(k)) * 0.01
    factor = np.linalg.cholesky(covariance)
    kind, ids = random.integers(0, len(CLASSES), objects), np.arange(objects, dtype=np.uint64)
    score = random.uniform(size=objects)
    bodies = []
    speeds = random.uniform(0.6, 8.0, objects)
    for number, boxes in enumerate(driven(random, objects)):
        columns = {**dict(zip(SPACE.names, boxes.T, strict=True)), "speed": speeds}
        true = np.stack([columns[name] for name in space.names], axis=1)
        frame = OutgoingFrame(
            frame_id=1,
            stamp_ns=1,
            id=ids,
            class_index=kind,
            mean=true + (factor @ random.normal(size=(objects, k, 1)))[:, :, 0],
            covariance=None if bare else covariance,
            score=score if bare else None,
            truth=true if truth else None,
            upstream_track=ids + np.uint64(objects * (number // life)) if life else None,
        )
        encoded = encode_frame(frame)
        _, frame_at = read_varint(encoded, 1)
        # Behind frame_id and stamp_ns, 9 bytes each.
        bodies.append(encoded[frame_at + 18 :])
    return bodies


def driven(random: np.random.Generator, objects: int) -> FloatArray:
    """Draws (PERIOD, objects, K) true boxes; 0.6 to 8 m/s."""
    radius = random.uniform(2.0, 25.0, objects)
    centre = random.uniform(radius - REACH, REACH - radius, (2, objects))
    way = random.choice((-1.0, 1.0), objects)
    turned = way * 2 * np.pi * np.arange(PERIOD)[:, None] / PERIOD
    angle = turned + random.uniform(-np.pi, np.pi, objects)
    boxes = np.empty((PERIOD, objects, SPACE.k))
    boxes[:, :, 0] = centre[0] + radius * np.cos(angle)
    boxes[:, :, 1] = centre[1] + radius * np.sin(angle)
    boxes[:, :, 2] = 1.0
    boxes[:, :, 3:6] = random.uniform((0.5, 0.5, 1.4), (5.0, 2.0, 2.0), (objects, 3))
    boxes[:, :, 6] = (angle + way * np.pi / 2 + np.pi) % (2 * np.pi) - np.pi
    return boxes


def framed(number: int, stamp_ns: int, bodies: list[bytes]) -> bytes:
    """Makes the ProcessRequest with the frame of that number."""
    body = bodies[number % len(bodies)]
    head = b"\x09" + number.to_bytes(8, "little") + b"\x11" + stamp_ns.to_bytes(8, "little")
    return b"\x12" + varint(len(head) + len(body)) + head + body
