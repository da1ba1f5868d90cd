"""Package metadata: the README as it is shown on a package page."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^]]*)]\((?!https?://|#)([^)]+)\)")


def package_readme(text: str, repository: str | None) -> str:
    """Make relative links absolute.

    A package page cannot resolve links into the repository. As long as the project has no public
    repository URL, links become plain text and pictures are left out.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if repository is None:
            return "" if picture else label
        view = "raw" if picture else "blob"
        return f"{picture}[{label}]({repository}/{view}/main/{target})"

    return LINK.sub(absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    """Set `readme`, which is dynamic."""

    def update(self, metadata: dict) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        text = package_readme(readme, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
