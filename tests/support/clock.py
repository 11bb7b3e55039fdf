"""A clock that tests set."""


class Clock:
    """Shows what it is set to, so that a slow machine changes nothing."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
