"""Codecs: requests and answers of each dialect from and to those of chat completions. Pure.

Where else a dialect is spoken:

    how an upstream is asked in it    its row in qnet/policies/upstream_dialects.py
    its routes, errors and paths      DIALECT in server/routes/{chat,anthropic,responses,gemini,ollama}.py
    bodies, as a guided step and back server/{chat,anthropic,responses,gemini}/
    our own bodies, no dialect        server/own_bodies/

Upstreams are asked in four of them. Ollama's (`ollama.py`) is spoken by callers alone, and its bodies
are in `server/routes/ollama.py`.
"""
