"""Decisions of learning while serving: when to fit, to try, to guide and to roll back.

Everything that is decided is a line of a ledger in the folder of episodes, and the state follows from its lines: a
restart loses nothing, and replicas read what one of them decides.
"""
