"""`make client-types`: write the types of both clients."""

from pathlib import Path
from typing import Final

from tools.client_types.python import python_files
from tools.client_types.typescript import PACKAGE, SCHEMAS, typescript_schemas
from tools.reference_pages.api import api_document

ROOT: Final = Path(__file__).parents[2]


def main() -> None:
    """Write every generated file."""
    document = api_document()
    package = ROOT / PACKAGE
    files = python_files(document)
    files[f"{PACKAGE}/{SCHEMAS}"] = typescript_schemas(document, package)
    for path, text in files.items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
