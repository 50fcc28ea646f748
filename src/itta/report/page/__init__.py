"""The page of a run: one HTML file with everything in it, made of records and stories."""
