"""Show the doctests of docstrings as code on the site, where Markdown would read their output as prose."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.M)


class CodeInDocstrings(griffe.Extension):
    """Put fences around doctests."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_fences(obj.docstring.value)


def with_fences(text: str) -> str:
    """Put a fence around each doctest, which ends with an empty line."""
    return DOCTEST.sub(lambda found: f"```python\n{found[0].rstrip()}\n```\n", text)
