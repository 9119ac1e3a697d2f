"""The configuration of a sidecar that the demo's story can be told with; text alone."""

from __future__ import annotations

# alpha is of one sensor: of six together it is the default again. The band is wider than the
# default: with errors as heavy-tailed as these, a few tracks of a healthy sensor read 2, too. The
# rest makes the story short, as the drive is: fits of enough tracks to be right at once, no second
# step for a few tenths, tracks that are whole soon, and a quick way back. Alarms of drift end soon
# after what they are of; and a computer that is busy with other things, too, counts everything,
# however late.
_CONFIG = """
[server]
shed_lag_seconds = 0.0

[statistics]
slice_by = ["stream"]

[tracker]
kind = "embedded"

[promotion]
mode = "automatic"
alpha = 0.003
band = [0.5, 3.0]
fit_every_seconds = {fit_every_s}
fit_tracks = 20
hysteresis = 1.5
rollback_tracks = 1000.0
track_seconds = 4.0

[drift]
calm_hours = 0.01

[metrics]
refresh_seconds = 1.0
"""
_FIT_EVERY_S = 1.0  # s of the drive


def config_text(speed: float) -> str:
    """TOML for `serve`; speed is the seconds of the drive in a second."""
    return _CONFIG.format(fit_every_s=_FIT_EVERY_S / speed)
