"""Version of this client."""

from typing import Final

VERSION: Final = "0.1.0"
