"""What training and adaptation cost, measured side by side in one process."""
