"""One live stream as a pure state machine: samples and decoder results in, events out."""
