"""Fitting a QNet to labelled trees and decision groups: examples, objective, validation."""
