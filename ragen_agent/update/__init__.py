"""One update: scores, filter, advantages and batches."""
