"""Studies that go beyond the paper."""
