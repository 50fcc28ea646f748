"""Complete the site while MkDocs builds it: pages made from the code, and links that leave docs/.

MkDocs calls the functions named ``on_…``. They add the pages of the commands (from ``itta VERB --help``) and of the
Python modules (from their docstrings), take CONTRIBUTING.md, CHANGELOG.md and benchmarks/README.md into the site, and
fill in the entries of the navigation that end in ``/*``.
"""

import ast
import io
import os
import posixpath
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/itta"
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")  # pages of the site that do not lie in docs/
LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)\s]+)\)")
EXAMPLES = ("Examples: ", "Example: ")  # how a help text introduces several, or one


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the navigation: the pages of the methods, in the order of their index, and those of the modules."""
    config.nav = [filled(entry) for entry in config.nav or []]
    return config


def filled(entry: Any) -> Any:
    if isinstance(entry, list):
        return [filled(e) for e in entry]
    if isinstance(entry, dict):
        return {title: filled(e) for title, e in entry.items()}
    if not entry.endswith("/*"):
        return entry
    folder = entry.removesuffix("/*")
    if folder == "reference/python":
        return [f"{folder}/{room}.md" for room in rooms()]
    return [f"{folder}/README.md", *(f"{folder}/{page}" for page in listed_pages(folder))]


def listed_pages(folder: str) -> list[str]:
    """The pages that an index of methods links to, each once, in its order."""
    text = (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r"\]\(([^)#/]+\.md)\)", text)))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    for room in rooms():
        files.append(File.generated(config, f"reference/python/{room}.md", content=room_page(room)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site, or at files of the repository that are none."""
    source = page.file.src_uri
    folder = posixpath.dirname(source if source in OUTSIDE else f"docs/{source}")

    def repaired(match: re.Match[str]) -> str:
        text, (target, hash_, anchor) = match["text"], match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = path if path in OUTSIDE else path.removeprefix("docs/") if path.startswith("docs/") else None
        if inside and files.get_file_from_path(inside):
            return f"{text}({relative(inside, source)}{hash_}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # MkDocs warns
        href = f"{config.repo_url.rstrip('/')}/blob/main/{path}" if config.repo_url else relative(f"../{path}", source)
        return f'<a href="{href}">{text[1:-1].replace("`", "")}</a>'

    return outside_code(LINK, repaired, markdown)


def outside_code(pattern: re.Pattern[str], repl: Any, text: str) -> str:
    """Replace in everything but code; a link whose text is code is still a link."""
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(block if block.startswith("```") else pattern.sub(repl, block) for block in blocks)


def relative(target: str, source: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(source) or ".")


def rooms() -> list[str]:
    """The parts of the package, each a folder or a module; commands have a page of their own."""
    names = {p.stem for p in PACKAGE.iterdir() if (p / "__init__.py").is_file() or p.suffix == ".py"}
    return ["itta", *sorted(names - {"__init__", "__main__", "cli"})]


def room_page(room: str) -> str:
    """Name the modules of a room, which mkdocstrings replaces by their docstrings."""
    name = "itta" if room == "itta" else f"itta.{room}"
    folder = PACKAGE / room
    if not folder.is_dir():
        return f"# {name}\n\n{insertion(name)}\n"
    text = [f"# {name}", insertion(name, definitions(folder / "__init__.py"))]
    own_pages = set(pages_of_methods(room))
    if own_pages:
        text.append(f"The methods have [pages of their own](../../{room}/README.md).")
    files = sorted(p for p in folder.rglob("*.py") if p.name != "__init__.py" and p not in own_pages)
    modules = [".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in files]
    text += [f"## {module.removeprefix(f'{name}.')}\n\n{insertion(module)}" for module in modules]
    return "\n\n".join(text) + "\n"


def insertion(module: str, members: Sequence[str] | None = None) -> str:
    """Ask mkdocstrings for a module: all that it exports, or the named members."""
    chosen = "" if members is None else f"\n      members: {list(members) or 'false'}"
    return f"::: {module}\n    options:\n      show_root_heading: false\n      show_submodules: false{chosen}"


def definitions(path: Path) -> list[str]:
    """List the functions and classes that a file defines itself."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]


def pages_of_methods(room: str) -> Iterable[Path]:
    """The modules that have a generated page."""
    for page in (ROOT / "docs" / room).glob("*.md"):
        yield from (
            ROOT / path
            for path in re.findall(r"\]\(\.\./\.\./(src/itta/\w+/\w+\.py)\)", page.read_text(encoding="utf-8"))
        )


def commands_page() -> str:
    from itta.cli import VERBS

    parts = [
        "# Commands",
        "After reading this page you know every flag of every command; `itta VERB --help` prints the same.",
    ]
    parts += [f"## itta {verb}\n\n```text\n{help_text(verb)}\n```" for verb in VERBS]
    return "\n\n".join(parts) + "\n"


def help_text(verb: str) -> str:
    """Return what ``itta VERB --help`` prints, in lines of at most 100 characters, with a line for each example."""
    from itta.cli import main

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit), patch.dict(os.environ, COLUMNS="100"):
        main([verb, "--help"])
    lines = []
    for line in printed.getvalue().strip().splitlines():
        about, found, examples = line.partition(EXAMPLES[line.count("; itta ") == 0])
        lines += textwrap.wrap(about, 100) if len(about) > 100 else [about] if about or not found else []
        lines += [found.strip(), *(f"  {example}" for example in examples.split("; "))] if found else []
    return "\n".join(lines)
