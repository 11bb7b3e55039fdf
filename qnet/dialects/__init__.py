"""Codecs: requests and answers of each dialect from and to those of chat completions. Pure."""
