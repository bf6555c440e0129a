"""Whole recordings: from samples to an engine request, and from its result to a transcript."""
