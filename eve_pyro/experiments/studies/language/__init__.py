"""Transformers that read books: distributional feed-forward blocks against their controls."""
