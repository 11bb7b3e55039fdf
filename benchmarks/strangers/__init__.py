"""Environments that differ in kind, as strangers write them, and what a Q model is worth there.

    python -m benchmarks.strangers --learner benchmarks.strangers.ridge:Ridge
    python -m benchmarks.strangers.served_model helpdesk --port 8001     # a mock LLM over HTTP

errands.py, crafting.py, helpdesk.py and search.py are the environments, each named to QGuide by its
import path; the files ending in _model.py are their mock LLMs. outsiders/ has more, in other forms.
"""
