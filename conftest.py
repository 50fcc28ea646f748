"""Fixtures that tests of several rooms share."""

pytest_plugins = (
    "tests.fixtures.toy",
    "tests.fixtures.photos",
    "tests.fixtures.made_up",
    "tests.fixtures.inline_engine",
)
