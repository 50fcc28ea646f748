"""Many trials: which ones, how they stand, and the engines that run them."""
