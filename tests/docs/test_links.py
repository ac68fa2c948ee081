"""Links in the documents lead to existing files and headings, and the site's navigation has every page."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "validation/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
FENCE = re.compile(r"(?ms)^```.*?^```")
CODE = re.compile(r"`[^`\n]*`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(page: Path) -> Iterator[str]:
    """Targets of links and images outside of code, without those of other sites."""
    text = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    yield from (target for target in LINK.findall(text) if not re.match(r"[a-z]+:", target))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")))
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"[*`]", "", heading).strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for target in links(page):
        address, _, anchor = target.partition("#")
        path = (page.parent / unquote(address)).resolve() if address else page
        if not path.exists() or (anchor and (path.suffix != ".md" or anchor not in anchors(path))):
            broken.append(target)
    assert not broken


def test_navigation_has_every_page_once():
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_documents_stay_within_the_site():
    """A link out of docs/ works in a checkout, and not on the site."""
    for page in (ROOT / "docs").rglob("*.md"):
        for target in links(page):
            path = (page.parent / unquote(target.partition("#")[0])).resolve()
            assert path.is_relative_to(ROOT / "docs"), f"{name(page)}: {target}"


def test_each_schema_is_linked():
    text = (ROOT / "docs" / "reference" / "schemas.md").read_text("utf-8")
    assert set(re.findall(r"\.\./schemas/([\w-]+)\.json\)", text)) == {
        path.stem for path in (ROOT / "docs" / "schemas").glob("*.json")
    }
