"""Bodies of QGuide's own endpoints, and the histories they hold."""
