"""Our own studies, which aren't part of the wheel, and the pages of results made from them.

They are studies like anybody's, and run from the root of the repository:

    mpelu reproduce research.activations:normalized --data-dir DATA
    mpelu reproduce research.depth:study --data-dir DATA
"""
