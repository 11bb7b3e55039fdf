"""Growth of trees and groups by each paper's method, and decision groups from played episodes.

`mcts` is StepQ's, `tree_expansion` QLASS's, `contrast` IPR's and `rising` RRO's.
"""
