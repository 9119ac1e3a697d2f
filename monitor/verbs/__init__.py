"""One file a verb: its options, and the wiring of the parts it needs."""
