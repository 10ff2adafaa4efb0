"""Builds the site of the documentation in build/site.

    python docs/build.py        (make docs)

The pages in docs/ are the only texts. docs/README.md is their index: its headings are the sections of the site, its
links are their pages. Here they are laid out for Zensical, which makes HTML of them and fails at a broken link. Each
page is on the site as Markdown, too, and llms.txt lists those.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import relpath

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PLACE = ROOT / "build"
SUMMARY = "A durable task scheduler daemon in Python, on SQLite or PostgreSQL: graphs, schedules, durable steps."
LANDING = "---\nhide: [navigation, toc]\n---\n\n"
UNSEARCHED = "---\nsearch: { exclude: true }\n---\n\n"

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# What Zensical writes, and a page does without: a script from elsewhere (docs/site.js does its work), and links without
# a name at each line of code.
NEEDLESS = re.compile(
    r'<script src="https://unpkg\.com/[^"]*"[^>]*></script>|<a id="__codelineno-[^"]*" name="[^"]*" href="[^"]*"></a>'
)


@dataclass(frozen=True)
class Page:
    """A page of the site: its file here, its path there, both below their roots."""

    source: str
    path: str
    text: str

    @property
    def title(self) -> str:
        found = HEADING.search(CODE.sub("", self.text))
        return found[1] if found else self.path

    @property
    def first_sentence(self) -> str:
        for block in re.split(r"\n\s*\n", CODE.sub(lambda code: "" if "\n" in code[0] else code[0], self.text)):
            prose = " ".join(LINK.sub(r"\2", block).split())
            if prose and prose[0] not in "#<!|-" and "](" not in prose:
                return re.split(r"(?<=[.!?])\s", prose)[0].rstrip(":")
        return ""


def place_of(source: str) -> str:
    """Where a Markdown file is on the site: docs/ is its root, texts of other folders are in project/."""
    path = PurePosixPath(source)
    if path.parts[0] != "docs":
        return f"project/{'-'.join(path.parts).lower().replace('-readme', '')}"
    below = str(path.relative_to("docs"))
    return "contents.md" if below == "README.md" else below.replace("/README.md", "/index.md")


def sections() -> dict[str, list[tuple[str, str]]]:
    """The sections of the index, each with the title and the file of its pages."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (DOCS / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            found[line[3:]] = []
        elif link := re.match(r"- \[(.+?)\]\((.+?)\)", line):
            source = (DOCS / link[2]).resolve().relative_to(ROOT)
            found[next(reversed(found))].append((link[1], str(source)))
    return found


def pages() -> dict[str, Page]:
    """All pages by their file, with links between them as they are on the site."""
    sources = {f"docs/{path.relative_to(DOCS)}" for path in DOCS.rglob("*.md")}
    sources |= {source for section in sections().values() for _, source in section}
    return {source: Page(source, place_of(source), "".join(_text(source, sources))) for source in sorted(sources)}


def _text(source: str, sources: set[str]) -> Iterator[str]:
    """The text of a page; links to other files than pages lead to files/, links to folders are none."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        name, _, anchor = target.partition("#")
        if not name or ":" in name:
            return found[0]
        there = (ROOT / source).parent.joinpath(name).resolve()
        if not there.exists():
            raise SystemExit(f"{source}: {target} leads nowhere")
        path = str(there.relative_to(ROOT))
        if there.is_dir():
            return str(label)
        new = place_of(path) if path in sources else _file(path)
        return (
            f"{mark}[{label}]({relpath(new, str(PurePosixPath(place_of(source)).parent))}{'#' * bool(anchor)}{anchor})"
        )

    text, at = (ROOT / source).read_text(encoding="utf-8"), 0
    # Links may have code in their text, so only blocks of code are left alone.
    for block in (found for found in CODE.finditer(text) if "\n" in found[0]):
        yield LINK.sub(link, text[at : block.start()])
        # Zensical would fetch the program that draws them; forges have one.
        yield block[0].replace("```mermaid", "```text", 1)
        at = block.end()
    yield LINK.sub(link, text[at:])


def _file(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as forges and Zensical make them."""
    found: set[str] = set()
    for heading in HEADING.findall(re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        plain = LINK.sub(r"\2", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        number = sum(one == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", one) is not None for one in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


def wrong_links(all_pages: dict[str, Page]) -> list[str]:
    """Links between pages whose page or heading does not exist."""
    there = {page.path: anchors(page.text) for page in all_pages.values()}
    wrong = []
    for page in all_pages.values():
        for _, _, target in LINK.findall(re.sub(r"^( *)```.*?^\1```$", "", page.text, flags=re.DOTALL | re.MULTILINE)):
            name, _, anchor = target.partition("#")
            if ":" in name or (name and not name.endswith(".md")):
                continue
            path = relpath(str(PurePosixPath(page.path).parent / name), ".") if name else page.path
            if path not in there or (anchor and anchor not in there[path]):
                wrong.append(f"{page.source}: {target}")
    return wrong


def llms(all_pages: dict[str, Page]) -> str:
    """The list of pages for programs that read (llmstxt.org)."""
    lines = ["# schedd", "", f"> {SUMMARY}", ""]
    lines += ["Each page is Markdown at the address below, and HTML at the same address with .html.", ""]
    for section, entries in sections().items():
        lines += [f"## {section}", ""]
        for title, source in entries:
            page = all_pages[source]
            lines.append(f"- [{title}]({page.path}): {page.first_sentence}")
        lines.append("")
    return "\n".join(lines)


def navigation(all_pages: dict[str, Page]) -> str:
    """The sections as Zensical's setting."""
    nav = []
    for section, entries in sections().items():
        parts = ", ".join(f"{{ {json.dumps(title)} = {json.dumps(all_pages[s].path)} }}" for title, s in entries)
        nav.append(f"    {{ {json.dumps(section)} = [{parts}] }},")
    return "nav = [\n" + "\n".join(nav) + "\n]\n"


def lay_out(place: Path) -> dict[str, Page]:
    """Write what Zensical reads: pages, the files that they show, its configuration."""
    shutil.rmtree(place / "docs", ignore_errors=True)
    all_pages = pages()
    if wrong := wrong_links(all_pages):
        raise SystemExit("links that lead nowhere:\n" + "\n".join(wrong))
    for page in all_pages.values():
        head = LANDING if page.path == "index.md" else UNSEARCHED if page.path.startswith("decisions/") else ""
        _write(place / "docs" / page.path, head + page.text)
    for path in DOCS.rglob("*"):
        if path.suffix in {".png", ".svg"}:
            _copy(path, place / "docs" / path.relative_to(DOCS))
    for source in sorted({found for page in all_pages.values() for found in _files_of(page)}):
        _copy(ROOT / source.removeprefix("files/"), place / "docs" / source)
    for name in ("site.css", "site.js"):
        _copy(DOCS / name, place / "docs" / "assets" / name)
    settings = (DOCS / "zensical.toml").read_text(encoding="utf-8")
    _write(place / "zensical.toml", settings.replace("nav = []\n", navigation(all_pages)))
    return all_pages


def _files_of(page: Page) -> Iterator[str]:
    for _, _, target in LINK.findall(page.text):
        name = relpath(str(PurePosixPath(page.path).parent / target.partition("#")[0]), ".")
        if name.startswith("files/"):
            yield name


def finish(site: Path, all_pages: dict[str, Page]) -> None:
    """Put the pages as Markdown beside the HTML, and leave out what would be fetched from elsewhere."""
    for page in all_pages.values():
        _write(site / page.path, page.text)
        html = (site / page.path).with_suffix(".html")
        name = PurePosixPath(page.path).name
        text = NEEDLESS.sub("", html.read_text(encoding="utf-8"))
        text = text.replace('<input type="checkbox"', '<input type="checkbox" aria-label="done"')
        text = text.replace("</head>", f'<link rel="alternate" type="text/markdown" href="{name}"></head>', 1)
        twin = f'<p class="twin"><a href="{name}">This page as Markdown</a></p></article>'
        if name == "index.md" and page.path == name:
            text = text.replace("<body ", '<body class="landing" ', 1)
        html.write_text(text.replace("</article>", twin, 1), encoding="utf-8")
    (site / "404.html").write_text(NEEDLESS.sub("", (site / "404.html").read_text(encoding="utf-8")), encoding="utf-8")
    _write(site / "llms.txt", llms(all_pages))
    # A page that is opened as a file may start no worker from another file, so its text is a script.
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    script = site / "assets" / "site.js"
    source = f"const SEARCH_WORKER = {json.dumps(worker.read_text(encoding='utf-8'))};\n"
    _write(script, source + script.read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main() -> None:
    shutil.rmtree(PLACE / "site", ignore_errors=True)
    all_pages = lay_out(PLACE)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(PLACE / "zensical.toml")]
    if status := subprocess.run(command, cwd=PLACE, check=False).returncode:
        raise SystemExit(status)
    finish(PLACE / "site", all_pages)
    print(f"{len(all_pages)} pages in build/site. To read them: python -m http.server -d build/site 8000")


if __name__ == "__main__":
    main()
