"""Looking inside a model: Grad-CAM of losses, what training did, what predictions cost."""
