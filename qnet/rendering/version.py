"""Version of the renderer: checkpoints name the one that made the tokens of their training."""

from typing import Final

RENDERER_VERSION: Final = "2"
FIRST_RENDERER_VERSION: Final = "1"
"""Read still where it made the same tokens; see `Renderer.renders_as_version_1`."""
