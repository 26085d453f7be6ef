"""`arr-coc serve`: an OpenAI-compatible endpoint. One worker thread owns the model; the event loop never waits for it."""
