"""Request and response bodies of QGuide's own endpoints, and their conversion to histories."""
