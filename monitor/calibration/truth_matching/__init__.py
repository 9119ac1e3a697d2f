"""Which detection a labelled object belongs to, where the labeller's ids are not the detector's."""
