"""Pure tensor maths: functions that take and return tensors, and hold nothing."""
