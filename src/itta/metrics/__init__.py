"""Metrics: accuracy, calibration, selection rules and significance, computed from measurements without torch."""
