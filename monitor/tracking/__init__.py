"""A Kalman-filter tracker: association, ego motion, late frames, quality."""
