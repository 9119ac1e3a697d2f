"""What two looks at a sidecar say of it, in plain words. Values in, values out: it asks nobody."""
