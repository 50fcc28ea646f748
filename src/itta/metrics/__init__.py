"""Accuracy, calibration, selection rules, significance: numbers computed from what was measured, without torch."""
