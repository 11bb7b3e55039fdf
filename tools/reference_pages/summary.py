"""Copy of the results summary from the results page to the README."""

import re
from typing import Final

_SUMMARY: Final = re.compile(r"<!-- summary:[^>]*-->\n(.*?)<!-- end of summary -->", re.DOTALL)
_LINK: Final = re.compile(r"\]\((?!https?:|#)")
_PLACE: Final = re.compile(r"(<!-- results:[^>]*-->\n).*?(<!-- end of results -->)", re.DOTALL)


def with_summary(readme: str, results: str) -> str:
    """The README with the summary of the results page between its markers; its links lead there.

    Raises:
        ValueError: the markers are missing in one of the pages.
    """
    found = _SUMMARY.search(results)
    if found is None or not _PLACE.search(readme):
        raise ValueError(
            "docs/results/index.md or README.md has no summary markers; restore the comments "
            "`<!-- summary: … -->` and `<!-- results: … -->` with their ends"
        )
    summary = _LINK.sub("](docs/results/", found[1])
    return _PLACE.sub(lambda place: f"{place[1]}{summary}{place[2]}", readme)
