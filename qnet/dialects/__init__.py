"""Codecs: requests and answers of each dialect from and to those of chat completions. Pure.

Where else a dialect is spoken:

    how an upstream is asked in it    qnet/policies/upstream_dialects.py
    request bodies that callers send  server/{chat,anthropic,responses,gemini}/schemas.py
    a body as a guided step, and back server/{chat,anthropic,responses,gemini}/
    its errors                        server/http/error_bodies.py
    our own bodies, no dialect        server/own_bodies/

Upstreams are asked in four of them. Ollama's (`ollama.py`) is spoken by callers alone, and its bodies
are in `server/routes/ollama.py`.
"""
