"""Train on several image domains, adapt at test time without labels, and know honestly whether it helped."""

__version__ = "0.1.0"
