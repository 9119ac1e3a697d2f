"""calibration-monitor demo: placeholder."""

EXAMPLE = ""


def add_options(parser):
    pass


def run(options):
    return 1
