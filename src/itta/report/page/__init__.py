"""The page of a run: one HTML file with everything in it, made from records and stories."""
