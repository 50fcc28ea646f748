"""Running things: train a trial, evaluate a stream, predict images, the demo."""
