"""Captions rooms: what several microphones hear, as one transcript that many people read live."""
