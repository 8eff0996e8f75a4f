"""Studies of this package's own, at a size that two cores can train."""
