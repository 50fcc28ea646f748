"""Looking inside a model: Grad-CAM of losses, logs of training, the story of a run, the cost of predictions."""
