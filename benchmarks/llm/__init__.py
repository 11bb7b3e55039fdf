"""Language models in place of the mocks of environments."""
