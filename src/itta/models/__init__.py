"""The trained model as adapters see it, and what it takes along from its source data."""
