"""Adapt a model to a stream that never ends, save where it stands, and go on later from there.

Run: python examples/adapt_stream.py MODEL (the --out of itta train or of the demo's runs/)
"""

import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import itta
from itta.data import load_dataset
from itta.data.loaders import stream

model = itta.load(sys.argv[1])
images = load_dataset("emoji", image_size=model.task.image_size).domain("noto-mono")
batches = [(x, y) for _, x, y in stream(images, np.arange(64), batch_size=16, seed=0)]

adapter = itta.adapt(model, "itta", steps=1)
for x, y in batches[:2]:
    print("right:", int((adapter(x).argmax(1) == y).sum()), "of", len(y))
save_file(adapter.state_dict(), "adapter.safetensors")  # Θ, the optimiser's moments, the random numbers

later = itta.adapt(model, "itta", steps=1)
later.load_state_dict(load_file("adapter.safetensors"))
for x, y in batches[2:]:
    logits = later(x)
    assert torch.equal(logits, adapter(x)), "a resumed adapter equals one that never stopped"
    print("right:", int((logits.argmax(1) == y).sum()), "of", len(y))
