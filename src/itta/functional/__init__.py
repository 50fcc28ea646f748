"""Formulas on tensors: functions that take and return tensors and keep no state."""
