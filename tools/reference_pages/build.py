"""All generated files; a test compares them with the committed ones."""

import json
from pathlib import Path
from typing import Final

from tools.reference_pages.api import api_document, api_page
from tools.reference_pages.clients import clients_page
from tools.reference_pages.errors import errors_page
from tools.reference_pages.jobs import job_pages, jobs_page
from tools.reference_pages.metrics import metrics_page
from tools.reference_pages.models import models_page
from tools.reference_pages.settings import settings_page
from tools.reference_pages.summary import with_summary
from tools.reference_pages.templates import templates_page

ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = "docs/reference"


def build_files() -> dict[str, str]:
    """Build the text of each generated file, by its path in the repository."""
    document = api_document()
    results = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {
        f"{REFERENCE}/settings.md": settings_page(),
        f"{REFERENCE}/jobs.md": jobs_page(),
        **{f"{REFERENCE}/jobs/{name}.md": text for name, text in job_pages().items()},
        f"{REFERENCE}/errors.md": errors_page(),
        f"{REFERENCE}/metrics.md": metrics_page(),
        f"{REFERENCE}/models.md": models_page(),
        f"{REFERENCE}/templates.md": templates_page(),
        f"{REFERENCE}/openapi.md": api_page(document),
        f"{REFERENCE}/openapi.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        "docs/connect/clients.md": clients_page(),
        "README.md": with_summary(readme, results),
    }
