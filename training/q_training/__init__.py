"""Training of a QNet on labelled trees and decision groups: examples, objective, validation."""
