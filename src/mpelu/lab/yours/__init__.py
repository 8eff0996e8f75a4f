"""For a model of your own: why it doesn't train, and which activation suits it."""
