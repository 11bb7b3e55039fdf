"""`python -m qguide`."""

from qguide.cli import app

if __name__ == "__main__":
    app()
