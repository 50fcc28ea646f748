"""The documentation as a reader meets it: links, commands, code, length, and the site that is built of it."""

import ast
import functools
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tyro

from itta.adapters import ADAPTERS
from itta.algorithms import ALGORITHMS
from itta.cli import VERBS
from itta.cli.adapter_choice import DEFAULT_ADAPTER
from itta.cli.profile import BATCHES
from itta.data.streams import CLASS_ORDERS, DOMAIN_ORDERS
from tests.test_imports import ALLOWED
from tools.docs_site import help_text
from tools.draw_architecture import Hop, read_floors, read_hop, read_walks, room_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = "<!-- Written by tools/build_docs.py"
MOST_WORDS = 1200
MOST_HOPS = 20
README_LINES = 90  # two screens

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *sorted(DOCS.rglob("*.md"))]
WRITTEN = [page for page in PAGES if GENERATED not in page.read_text(encoding="utf-8")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
TABLE = re.compile(r"(?:^\|.*\n?)+", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def prose(text: str) -> str:
    """Everything but code, tables and comments.

    >>> prose("One [link](a.md).\\n\\n| a | b |\\n| - | - |\\n\\n```sh\\nls -l\\n```\\nTwo <!-- no --> words.").split()
    ['One', 'link.', 'Two', 'words.']
    """
    text = TABLE.sub("", without_code(text))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


# ---- links


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_code(text_of(page)), re.M)
    return {slug(heading) for heading in headings}


def slug(heading: str) -> str:
    """The anchor of a heading.

    >>> slug("What `itta+` brings: a table"), slug("A stream, 4×4 cells")
    ('what-itta-brings-a-table', 'a-stream-44-cells')
    """
    words = re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[\s-]+", "-", words)


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(without_code(text_of(page))):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not (file.exists() and ROOT in file.parents) or (anchor and anchor not in anchors_of(file)):
            yield target


def test_links_lead_somewhere() -> None:
    pages = [*PAGES, ROOT / "CHANGELOG.md"]
    assert {name_of(page): found for page in pages if (found := list(broken_links(page)))} == {}


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# Other\n\n## A part\n", encoding="utf-8")
    page = tmp_path / "page.md"
    links = "[a](other.md) [b](other.md#a-part) [c](gone.md) [d](other.md#gone) [e](https://example.com) [f](../x)"
    page.write_text(f"{links}\n\n```\n[g](code.md)\n```\n", encoding="utf-8")
    assert list(broken_links(page)) == ["gone.md", "other.md#gone", "../x"]


def test_pages_named_in_the_code_exist() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    named = {name for file in files for name in re.findall(r"\bdocs/[\w/.-]*\w", text_of(file))}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_tests_named_in_the_pages_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\b(?:tests|examples|tools)/[\w/]+\.py\b", text_of(page))}
    template = {name for name in named if "NAME" in name}
    assert [name for name in sorted(named - template) if not (ROOT / name).exists()] == []


# ---- what a page is like


def test_pages_are_not_long() -> None:
    words = {name_of(page): len(prose(text_of(page)).split()) for page in WRITTEN}
    assert {name: n for name, n in words.items() if n > MOST_WORDS} == {}
    assert max(words.values()) > MOST_WORDS / 2  # the count finds words


def test_pages_open_with_their_use_then_a_command() -> None:
    for page in WRITTEN:
        if page == ROOT / "README.md":
            continue
        title, opening, *_ = text_of(page).split("\n\n")
        assert title.startswith("# "), page
        assert re.match(r"After reading this page you (can|know)\b", opening), page
        start = "\n## ".join(text_of(page).split("\n## ")[:2])
        assert FENCE.search(start) or page == DOCS / "results/index.md", f"{page} has no command at its start"


def test_tables_of_results_are_followed_by_their_meaning() -> None:
    for page in (DOCS / "results").glob("*.md"):
        for table in TABLE.finditer(text_of(page)):
            after = text_of(page)[table.end() :].lstrip("\n").split("\n\n")[0]
            if "---:" in table[0]:
                assert re.match(r"[\w`]", after), f"{page}: after {table[0].splitlines()[0]} comes {after[:40]!r}"


def test_the_readme_fits_two_screens_and_counts_right() -> None:
    text = text_of(ROOT / "README.md")
    assert len(text.splitlines()) <= README_LINES
    adapting = len(ADAPTERS) - 1  # one of them is not to adapt
    assert f"{len(ALGORITHMS)} training methods and {adapting} test-time methods" in text


def test_pages_name_the_defaults_and_choices_of_the_code() -> None:
    pages = ("adapt/streams.md", "adapt/own_model.md", "trust/cost.md")
    streams, own_model, cost = (text_of(DOCS / name) for name in pages)
    assert all(f"`{name}`" in streams for name in (*CLASS_ORDERS, *DOMAIN_ORDERS))
    assert f"If there is none, it takes\n`{DEFAULT_ADAPTER}`" in own_model
    few, many = (f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}" for sizes in (BATCHES[False], BATCHES[True]))
    assert f"by default {few}, with `--thorough` {many}" in cost


def test_every_published_row_is_in_the_pages(tmp_path: Path) -> None:
    """The tables that the grid makes of its records are those of the pages."""
    tables = importlib.import_module("benchmarks.adaptation_tables")
    published = "\n".join(text_of(page) for page in (DOCS / "results").glob("*.md"))
    for name in ("adaptation_grid", "adaptation_ablation"):
        made = text_of(tables.write(tables.read_csv(DOCS / f"results/records/{name}.csv"), tmp_path, name))
        rows = [squeezed(line) for line in made.splitlines() if line.startswith("| ")]
        assert len(rows) > 30
        assert sorted(set(rows) - set(map(squeezed, published.splitlines()))) == []


def squeezed(row: str) -> str:
    """A row of a table without the padding of its cells."""
    return re.sub(r" +", " ", row)


# ---- commands and code


def commands_of(page: Path) -> Iterator[str]:
    """The commands of itta in blocks of code."""
    for language, code in FENCE.findall(text_of(page)):
        if language == "sh":
            yield from (line for line in code.splitlines() if line.startswith("itta "))


def stub(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The same flags, and nothing done."""

    @functools.wraps(verb)
    def parse(*args: Any, **kwargs: Any) -> None: ...

    return parse


@functools.cache
def parser() -> tyro.extras.SubcommandApp:
    app = tyro.extras.SubcommandApp()
    for name, verb in VERBS.items():
        app.command(name=name)(stub(verb))
    return app


def parse(command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    if words[:2] == ["sweep", "status"]:
        words[:2] = ["sweep-status"]
    parser().cli(args=words, prog="itta")


def test_commands_parse(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {command: page for page in PAGES for command in commands_of(page)}
    assert len(commands) > 100
    for command, page in commands.items():
        try:
            parse(command)
        except SystemExit:
            pytest.fail(f"{page}: {command}\n{capsys.readouterr().err}")


def test_a_wrong_command_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    parse("itta train photos/ --target site-4 --out runs/sites  # a comment")
    for wrong in ("photos/", "photos/ --out runs/sites --no-such-flag", "photos/ --out runs/sites --steps many"):
        with pytest.raises(SystemExit):
            parse(f"itta train {wrong}")
    assert "--out" in capsys.readouterr().err


def test_commands_and_flags_in_sentences_exist() -> None:
    flags = {verb: set(re.findall(r"--[\w-]+", help_text(verb))) for verb in VERBS}
    for page in PAGES:
        for verb, rest in re.findall(r"`itta ([\w-]+)([^`]*)`", without_code(text_of(page))):
            if page.parent.name == "benchmarks" and verb not in VERBS:
                continue  # the name of a job
            assert verb in VERBS, f"{page}: itta {verb}"
            named = set(re.findall(r"--[\w-]+", rest)) - {"--help"}
            assert verb in ("data", "records") or named <= flags[verb], f"{page}: itta {verb} has no {named}"


def test_imports_in_python_code_work() -> None:
    blocks = [code for page in PAGES for language, code in FENCE.findall(text_of(page)) if language == "python"]
    nodes = [node for code in blocks for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith("itta")]
    assert len(ours) > 3
    for node in ours:
        module = importlib.import_module(node.module or "")
        assert [a.name for a in node.names if not hasattr(module, a.name)] == [], node.module


# ---- architecture


@pytest.fixture(scope="module")
def architecture() -> str:
    return text_of(DOCS / "architecture.md")


def test_every_room_has_its_floor(architecture: str) -> None:
    floors = read_floors(architecture)
    listed = [room for floor in floors for room in floor]
    assert len(listed) == len(set(listed))
    assert ALLOWED.keys() <= set(listed)
    table = architecture.split("## The rooms")[1].split("\n## ")[0]
    assert set(listed) == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M))))
    place = {
        room: (n, i if n >= len(floors) - 2 else 0) for n, floor in enumerate(floors) for i, room in enumerate(floor)
    }
    for room, (floor, left) in place.items():
        for other in ALLOWED.get(room, ()):
            assert place[other][0] > floor or place[other] < (floor, left), (
                f"{room} may import {other}, which is not below"
            )


def upstream(hops: Sequence[Hop], floors: Sequence[Sequence[str]]) -> list[Hop]:
    """The hops that go up, or across to another room of the same floor."""
    floor_of = {room: number for number, floor in enumerate(floors) for room in floor}
    rooms = [(hop, room_of(hop.caller), room_of(hop.callee)) for hop in hops]
    return [hop for hop, caller, callee in rooms if caller != callee and floor_of[callee] <= floor_of[caller]]


def test_walks_are_short_and_go_down(architecture: str) -> None:
    walks, floors = read_walks(architecture), read_floors(architecture)
    assert list(walks) == ["itta train", "itta adapt"]
    for hops in walks.values():
        assert 10 <= len(hops) <= MOST_HOPS
        assert upstream(hops, floors) == []
    assert upstream([Hop("data/cache", "run/train"), Hop("nn", "data"), Hop("run", "nn")], floors) == [
        ("data/cache", "run/train"),
        ("nn", "data"),
    ]
    with pytest.raises(ValueError, match="a hop is written"):
        read_hop("`run` calls `data`")


def test_every_hop_is_an_import(architecture: str) -> None:
    for hop in (hop for hops in read_walks(architecture).values() for hop in hops):
        assert any(module == hop.callee or module.startswith(f"{hop.callee}/") for module in imported(hop.caller)), hop


def imported(module: str) -> list[str]:
    """The modules that one imports, written as in the walks."""
    path = ROOT / "src/itta" / module
    tree = ast.parse(text_of(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "itta":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found += [name.removeprefix("itta").removeprefix(".").replace(".", "/") for name in names]
    return found


# ---- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails the build."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_has_every_page(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = page.relative_to(DOCS).with_suffix(".html")
        assert (site / built.with_name(built.name.replace("README", "index"))).is_file(), page
    commands = text_of(site / "reference/commands.html")
    assert all(f'id="itta-{verb}"' in commands for verb in VERBS)
    assert 'id="itta.adapt"' in text_of(site / "reference/python/itta.html")
    base = text_of(site / "reference/python/adapters.html")
    assert inspect.getdoc(ADAPTERS["source"].reset) in base
    assert 'href="../../src/itta/algorithms/erm.py"' in text_of(site / "algorithms/erm.html")  # from disk


def test_the_site_fetches_nothing(site: Path) -> None:
    """No script, style, font or picture from elsewhere; links to papers are links."""
    fetching = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        found = [tag for tag in fetching.findall(text_of(page)) if 'rel="canonical"' not in tag]
        assert found == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", text_of(style)), style


def test_search_and_dark_mode_work_from_disk(site: Path, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:", "about:")) or trouble.append(r.url))
    page.goto((site / "trust/guard.html").as_uri())
    page.locator("label[title='Switch to dark']").click()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    page.locator("input.md-search__input").click()
    page.keyboard.type("Jacobian")
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    first.click()
    page.wait_for_url("**/*h=jacobian*")
    assert "Jacobian" in page.locator("article").inner_text()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"  # the choice is remembered
    context.close()
    assert trouble == []


def test_a_phone_shows_whole_pages(site: Path, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    for name in ("index", "results/adaptation_grid", "architecture", "reference/commands"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
    context.close()
