"""The labelling page in a real browser, opened from disk and driven by keyboard only."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itta.explain.pictures import data_uri
from itta.records.label_plan import Plan, Sampled, plan_id, read_labels
from itta.report.page.labelling import write_labelling_page

EVIL = "</script><script>document.title = 'owned'</script>"


def make_plan(images: int, classes: tuple[str, ...]) -> Plan:
    sample = tuple(Sampled(3 * i + 1, f'photo "{i}", {EVIL}.png', "changed", 0, 1) for i in range(images))
    return Plan(plan_id(images, classes), "night", "itta+", classes, {"changed": images}, sample)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[[Plan], Any]]:
    trouble: list[str] = []
    context = browser.new_context(accept_downloads=True)

    def goto(plan: Plan) -> Any:
        rng = np.random.default_rng(0)
        pictures = [data_uri(Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))) for _ in plan.sample]
        file = write_labelling_page(tmp_path / "label.html", plan, pictures)
        page = context.new_page()
        page.on("console", lambda m: trouble.append(m.text))
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("request", lambda r: r.url.startswith((file.as_uri(), "data:", "blob:")) or trouble.append(r.url))
        page.goto(file.as_uri())
        assert page.title() == "Label night"
        return page

    yield goto
    context.close()
    assert trouble == []


def save(page: Any, out: Path) -> Path:
    with page.expect_download() as download:
        page.keyboard.press("Control+s")
    assert download.value.suggested_filename == "labels.csv"
    download.value.save_as(out)
    return out


@pytest.mark.slow
def test_500_images_by_keyboard_alone(opened: Callable[[Plan], Any], tmp_path: Path) -> None:
    plan = make_plan(500, (EVIL, "=dog", *(f"class {i}" for i in range(10))))
    page = opened(plan)
    keys = "1234567890ab"
    wanted = {s.number: i % 12 for i, s in enumerate(plan.sample)}
    for i in range(400):
        page.keyboard.press(keys[i % 12])
    assert page.locator("#status").inner_text() == "400 of 500 labelled"
    page.keyboard.press("5")  # a mistake,
    page.keyboard.press("Backspace")  # taken back
    page.keyboard.press("z")  # no class has this key
    page.close()
    page = opened(plan)  # the labels so far are kept
    assert page.locator("#status").inner_text() == "400 of 500 labelled"
    for i in range(400, 499):
        page.keyboard.press(keys[i % 12])
    page.keyboard.press("Space")  # cannot tell
    assert page.locator("#status").inner_text() == "All 500 labelled. Save the file."
    found = read_labels(save(page, tmp_path / "labels.csv"), plan)
    del wanted[plan.sample[-1].number]
    assert found == wanted


def test_many_classes_are_typed(opened: Callable[[Plan], Any], tmp_path: Path) -> None:
    plan = make_plan(3, tuple(f"{kind} {i}" for kind in ("cat", "dog") for i in range(30)))
    page = opened(plan)
    page.keyboard.type("dog 21")
    assert page.locator("#classes button").all_inner_texts() == ["dog 21"]
    page.keyboard.press("Enter")
    page.keyboard.type("cow")  # classes begin with c, but none with co
    assert page.locator("#typed").inner_text().endswith(": c")
    page.keyboard.press("Backspace")
    page.keyboard.type("cat 3")
    page.keyboard.press("Enter")
    found = read_labels(save(page, tmp_path / "labels.csv"), plan)
    assert [plan.classes[c] for c in found.values()] == ["dog 21", "cat 3"]


def test_clicks_work_too(opened: Callable[[Plan], Any], tmp_path: Path) -> None:
    plan = make_plan(2, ("cat", "dog"))
    page = opened(plan)
    page.get_by_role("button", name="dog").click()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="cat").click()
    page.get_by_role("button", name="dog").click()
    assert read_labels(save(page, tmp_path / "labels.csv"), plan) == {1: 0, 4: 1}
