"""Figures of the papers that no user needs: step rewards, success by tokens, two engines."""
