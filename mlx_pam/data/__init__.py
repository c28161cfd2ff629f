"""Text to training batches: tokenizer, corpora in memory maps, shuffled windows."""
