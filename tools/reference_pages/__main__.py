"""`make docs-reference`: write the reference pages and the README's summary of the results."""

from tools.reference_pages.build import ROOT, build_files


def main() -> None:
    """Write every generated file."""
    for path, text in build_files().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
