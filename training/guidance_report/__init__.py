"""Report of served, recorded episodes: was guidance worth it?"""
