"""Generator of the reference pages, from the code that they describe."""
