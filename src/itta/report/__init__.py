"""From records to tables and figures. Reads no model and needs no torch."""
