"""Training: from a config to a run folder. `trainer.py` is the place to start reading."""
