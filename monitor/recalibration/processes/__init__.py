"""Pure: sparse variational Gaussian processes, and the likelihoods of what they are fitted to."""
