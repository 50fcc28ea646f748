"""The page in a real browser, opened from disk."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from itta import records
from itta.records import Record
from itta.records.story import Diagnosed, Likeness, Story, Stream, write_story
from itta.report.page.document import write_page

EVIL = '<script>document.title = "owned"</script><img src="https://example.com/x.png" onerror="document.title = 1">'


@pytest.fixture(scope="session")
def page_file(
    tmp_path_factory: pytest.TempPathFactory,
    made: Callable[..., list[Record]],
    a_stream: Callable[..., Stream],
    a_story: Callable[..., Story],
) -> Path:
    """A run with trainings, two streams, and a class and a file whose names are HTML."""
    folder = tmp_path_factory.mktemp("run")
    first = a_stream(classes=("cat", "dog", EVIL))
    pictures = (replace(first.pictures[0], name=EVIL), *first.pictures[1:])
    diagnosis = Diagnosed(
        (Likeness(2, 1.0, 0.0), Likeness(8, 1.6, 0.5)), {"cat": 0.5, EVIL: 0.5}, {"neighbours": 3}, (4,), {EVIL: EVIL}
    )
    write_story(
        folder,
        a_story(replace(first, pictures=pictures, diagnosis=diagnosis), a_stream("itta, seed 1", after=first.before)),
    )
    found = [
        r
        for a, v in (("erm", 0.5), ("irm", 0.62), ("sd", 0.09))
        for s in range(2)
        for r in made(a, seed=s, accuracy=v + s / 50)
    ]
    trained = [replace(r, step=n, logs={"loss": 1 / n}) for r in found for n in (10, 20, 30)]
    records.write_all(folder / "records.jsonl", [*trained, *made("erm", "photo", adapted={"t3a": 0.4})])
    return write_page(folder / "page.html", [folder])


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Callable[..., Any]]:
    """(settings of the browser) -> the page; nothing may go wrong in it or be asked of the network."""
    trouble: list[str] = []
    contexts = []

    def goto(file: Path = page_file, **settings: Any) -> Any:
        contexts.append(browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | settings)))
        page = contexts[-1].new_page()
        page.on("console", lambda m: trouble.append(m.text))
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("request", lambda r: r.url in (file.as_uri(),) or r.url.startswith("data:") or trouble.append(r.url))
        page.goto(file.as_uri())
        return page

    yield goto
    for context in contexts:
        context.close()
    assert trouble == []


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f'table[aria-label="{table}"] tbody tr').evaluate_all(
        f"rows => rows.map(r => r.cells[{number}].textContent)"
    )


def test_tables_sort_by_click(opened: Callable[..., Any]) -> None:
    page = opened()
    heading = page.locator('table[aria-label="Everything recorded"] thead th').nth(2)
    assert heading.get_attribute("aria-sort") == "none"
    unsorted = column(page, "Everything recorded", 2)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(page, "Everything recorded", 2) == ["63.0 ± 0.7", "51.0 ± 0.7", "10.0 ± 0.7", "not adapted"]
    assert column(page, "Everything recorded", 0)[:3] == ["irm", "erm", "sd"]  # whole rows move
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "Everything recorded", 2) == [
        "10.0 ± 0.7",
        "51.0 ± 0.7",
        "63.0 ± 0.7",
        "not adapted",
    ]  # words last
    assert unsorted not in (
        column(page, "Everything recorded", 2),
        ["63.0 ± 0.7", "51.0 ± 0.7", "10.0 ± 0.7", "not adapted"],
    )


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_tables_sort_by_key(opened: Callable[..., Any], key: str) -> None:
    page = opened()
    page.locator('table[aria-label="Accuracy by class"] thead button').nth(4).focus()  # differences, of both signs
    page.keyboard.press(key)
    assert column(page, "Accuracy by class", 4)[:3] == ["+66.7", "0.0", "−33.3"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press(key)
    assert column(page, "Accuracy by class", 3)[:3] == ["100.0", "50.0", "33.3"]
    headings = page.locator('table[aria-label="Accuracy by class"] >> nth=0').locator("thead th")
    assert headings.evaluate_all("all => all.map(h => h.ariaSort)") == [
        "none",
        "none",
        "none",
        "descending",
        "none",
        None,
    ]


def test_figures_and_pictures_are_drawn(opened: Callable[..., Any]) -> None:
    page = opened()
    boxes = page.locator("figure.chart .box svg").evaluate_all(
        "all => all.filter(s => s.closest('details:not([open])') === null).map(s => s.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 2 + 3  # the open stream and its diagnosis; held-out sources, a target and the loss
    assert all(box["width"] > 200 and box["height"] > 100 for box in boxes)
    lines = page.locator("#stream-1 .stream .box path.line").evaluate_all("all => all.map(p => p.getTotalLength())")
    assert len(lines) == 2 + 2  # accuracy before and after; likeness and trust of the diagnosis
    assert min(lines) > 100
    assert page.locator("#stream-1 .mark").evaluate_all("all => all.map(m => m.title)") == [
        "after 2 images: finite (not finite), rolled back",
        "after 6 images: entropy (0.05, limit 0.1), reset",
        "after 4 images: the style jumps",  # on the chart of the diagnosis
    ]
    images = page.locator("img").evaluate_all("all => all.map(i => [i.alt, i.naturalWidth])")
    assert len(images) == 8
    assert all(alt and width == 8 for alt, width in images)
    texts = page.locator("svg[role=img]").evaluate_all(
        "all => all.map(s => s.getAttribute('aria-labelledby').split(' ').map(i => document.getElementById(i)))"
        ".map(both => both.map(e => e.textContent))"
    )
    assert texts[-1][0] == "loss"
    assert texts[-1][1].startswith("erm, seed 0, to sketch: from 0.1 to 0.0333; ")
    assert all(title and about for title, about in texts)


def test_names_stay_text(opened: Callable[..., Any]) -> None:
    page = opened()
    assert page.title() == "PACS: sketch from three others"
    assert EVIL in column(page, "Accuracy by class", 0)
    assert page.locator('img[src^="http"]').count() == 0
    assert page.locator("#stream-1 .helped img").get_attribute("alt").startswith(EVIL)


def test_no_script_but_ours_would_run(
    opened: Callable[..., Any], browser: Any, page_file: Path, tmp_path: Path
) -> None:
    """Were something to escape our escapes, the policy would stop it."""
    broken = tmp_path / "broken.html"
    text = page_file.read_text(encoding="utf-8")
    broken.write_text(text.replace("</main>", f"{EVIL}</main>"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("response", lambda r: asked.append(r.url))
    page.goto(broken.as_uri())
    assert page.title() == "PACS: sketch from three others"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


def test_light_and_dark(opened: Callable[..., Any]) -> None:
    colours = {
        scheme: opened(color_scheme=scheme).evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('.stream .line.l1')).stroke]"
        )
        for scheme in ("light", "dark")
    }
    assert colours["light"][0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(colours["light"], colours["dark"]))


@pytest.mark.parametrize("width", [390, 320])
def test_nothing_is_wider_than_a_phone(opened: Callable[..., Any], width: int) -> None:
    page = opened(viewport={"width": width, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(
        "[...document.querySelectorAll('.y span')].every(s => parseFloat(getComputedStyle(s).fontSize) > 11)"
    )


def test_paper_has_everything(opened: Callable[..., Any]) -> None:
    page = opened(color_scheme="dark")
    hidden = page.locator("#stream-2 table").first
    assert not hidden.is_visible()
    page.emulate_media(media="print")
    page.locator("details:not([open])").first.wait_for(state="detached")
    assert hidden.is_visible()
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.locator("#stream-2:not([open])").wait_for(state="attached")
    assert page.locator("details[open]").count() == 1  # as it was


def test_useful_without_scripts(opened: Callable[..., Any]) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("thead button").count() == 0
    assert page.get_by_text("50.0 → 62.5 % (+12.5 points) on 8 images").is_visible()
    page.locator("#stream-2 > summary").click()
    assert page.locator("#stream-2 table").first.is_visible()
    page.locator("#stream-2 > summary").click()
    page.emulate_media(media="print")
    assert page.locator("#stream-2 figure.stream svg[role=img]").is_visible()


def test_by_keyboard(opened: Callable[..., Any]) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to results"
    assert page.locator(".skip").bounding_box()["x"] >= 0  # seen once it has the focus
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.locator("#stream-2 > summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#stream-2").get_attribute("open") is not None
    assert page.locator(".scroll").evaluate_all("all => all.every(s => s.tabIndex === 0 && s.ariaLabel)")
    assert page.locator("main, header, nav, footer").count() == 4
    for link in page.locator("nav a").evaluate_all("all => all.map(a => a.getAttribute('href'))"):
        assert page.locator(link).count() == 1


def test_its_numbers_are_those_of_the_records(opened: Callable[..., Any], page_file: Path) -> None:
    page = opened()
    data = json.loads(page.locator("#itta-data").text_content())
    own: list[Record] = list(records.read(page_file.parent / "records.jsonl"))
    irm = [r.accuracy["sketch"]["in"] for r in own if r.trial.algorithm == "irm" and r.step == 30]
    (cell,) = (c for c in data["results"] if (c["row"], c["column"]) == ("irm", "sketch"))
    assert cell["mean"] == pytest.approx(100 * sum(irm) / len(irm))
    assert cell["n"] == len(irm) == 2
    story = json.loads((page_file.parent / "story.json").read_text(encoding="utf-8"))
    assert len(data["streams"]) == len(story["streams"]) == 2
    for told, stream in zip(data["streams"], story["streams"]):
        pairs = list(zip(stream["labels"], stream["before"], stream["after"]))
        assert told["before"] == pytest.approx(sum(y == b for y, b, _ in pairs) / 8)
        assert told["after"] == pytest.approx(sum(y == a for y, _, a in pairs) / 8)
        assert told["helped"] == sum(y == a != b for y, b, a in pairs)
        assert told["hurt"] == sum(y == b != a for y, b, a in pairs)
        for y, row in enumerate(told["confusion"]["after"]):
            assert row == [sum((y, said) == (label, a) for label, _, a in pairs) for said in range(3)]
    shown = [f"{100 * s[k]:.1f}" for s in data["streams"] for k in ("before", "after")]
    cells = zip(*(column(page, "Each stream, before and after adaptation", j) for j in (1, 2)))
    assert [text for row in cells for text in row] == shown
