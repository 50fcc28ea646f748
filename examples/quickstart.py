"""Train on three drawing styles, adapt to a fourth, in a dozen lines. Run: python examples/quickstart.py"""

import tempfile
from pathlib import Path

import itta
from itta.data import load_dataset
from itta.run.evaluate import evaluate
from itta.run.train import train
from itta.trial import Trial

trial = Trial(
    dataset="emoji",
    algorithm="itta",
    train_domains=("twemoji", "fluent-3d", "fluent-mono"),
    test_domains=("noto-mono",),
    steps=5,  # a few hundred for a real result
    overrides={"batch_size": 4, "lr": 2e-4},
)
out = Path(tempfile.mkdtemp()) / "model"
result = train(trial, out, report=lambda name, step, steps: print(f"{name}: step {step} of {steps}"))

model = result.model  # also saved: itta.load(out) gives the same
target = load_dataset("emoji", image_size=64).domain("noto-mono")
for adapter in (itta.adapt(model, "source"), itta.adapt(model, "itta")):
    outcome = evaluate(adapter, target, range(96), batch_size=32)
    print(f"{adapter.name:8} {100 * outcome.accuracy:.1f} % of {len(outcome.labels)} images")
