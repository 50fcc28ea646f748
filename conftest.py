"""Fixtures that tests of several rooms share, and the order of the tests."""

from pathlib import Path

import pytest

pytest_plugins = (
    "tests.fixtures.toy",
    "tests.fixtures.photos",
    "tests.fixtures.made_up",
    "tests.fixtures.inline_engine",
    "tests.fixtures.networks",
)


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a browser or the site as slow, and run the longest first: no worker waits at the end."""
    for item in items:
        if {"browser", "site"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent / "tests")
