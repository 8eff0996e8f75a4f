"""Which activation suits a model: rates, runs, costs and the verdict."""
