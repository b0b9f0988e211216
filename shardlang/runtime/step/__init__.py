"""One step: forward, backward and update, in microbatches and stages."""
