"""One trial from end to end: train, evaluate, record; predict, tune."""
