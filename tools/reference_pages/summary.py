"""The README's results: copied from the page of the results, where they are kept."""

import re
from typing import Final

_SUMMARY: Final = re.compile(r"<!-- summary:[^>]*-->\n(.*?)<!-- end of summary -->", re.DOTALL)
_PLACE: Final = re.compile(r"(<!-- results:[^>]*-->\n).*?(<!-- end of results -->)", re.DOTALL)


def with_summary(readme: str, results: str) -> str:
    """The README with the summary of the results page between its marks.

    Raises:
        ValueError: one of the pages lacks its marks.
    """
    found = _SUMMARY.search(results)
    if found is None or not _PLACE.search(readme):
        raise ValueError("docs/results/index.md or README.md lacks the marks of the summary")
    return _PLACE.sub(lambda place: f"{place[1]}{found[1]}{place[2]}", readme)
