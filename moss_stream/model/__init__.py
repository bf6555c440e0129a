"""The model: configuration, weights, tokenizer, prompt, mel, encoder, decoder, attention, VAD."""
