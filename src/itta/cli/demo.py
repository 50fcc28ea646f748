"""itta demo: from clone to a result."""

from dataclasses import asdict
from pathlib import Path

from itta.cli.screen import print_json, progress_bars, say, show, typed_command, use_threads


def demo(out: Path = Path("demo-output"), page: bool = True, device: str = "auto", json: bool = False) -> None:
    """Train on three drawing styles, adapt to a fourth without labels, and show the effect of each method.

    A few minutes on two cores the first time, cached afterwards. Example: itta demo --out demo-output

    Args:
        out: Where models, table, figures and page go.
        page: Write page.html, with everything to look at in one file.
        device: Device that computes: cpu, cuda, cuda:N or mps; auto takes a GPU if torch finds one.
        json: Print the result as JSON.
    """
    from itta.demo import Settings as DemoSettings
    from itta.demo import run_demo
    from itta.nn.device import resolve_device

    resolve_device(device)  # refuse an absent one before the work
    use_threads(1)  # images so small gain nothing from a second one
    with progress_bars() as report:
        table, files = run_demo(out, DemoSettings(device=device), report, typed_command() if page else None)
    if json:
        print_json({"table": asdict(table), "files": {k: str(v) for k, v in files.items()}})
        return
    show(table)
    for kind, path in files.items():
        say(f"{kind:8} {path}")
