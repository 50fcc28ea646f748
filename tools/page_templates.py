"""The texts around the generated parts of the method pages; tools/build_docs.py fills them in."""

INDEX = """\
# Training methods

{generated}

After reading this page you can choose a training method by its paper, its cost and its needs.

```sh
itta list algorithms          # the same on the screen, with every hyper-parameter
itta train DATA --target DOMAIN --algorithm erm --out DIR
```

Each method is one file, with the search ranges of DomainBed, checked against a naive recomputation of its formula. Each
also learns from a single source domain.

{methods}

## Cost and needs

{costs}

- **forward, backward**: images that pass a convolution of the backbone in one step, as a mean over its convolutions,
  relative to ERM. Counted on `small_cnn`, which has four convolutions, with {n_domains} source domains and default
  settings, over the first {steps} steps. A Jacobian-vector product counts as the forward convolutions that it consists
  of. A convolution counts as backward where the gradient of its weights is computed. Other networks, and work on
  feature vectors, are not counted.
- **more parameters** than ERM has, with ResNet-18 (512 features), {n_classes} classes, {n_domains} source domains and
  default settings. Some of them serve in training only, and some never learn; the method's page says which.
- **second order**: the part that is differentiated twice.
- **by batch**: a prediction depends on the other images of its batch.
- **one source**: how the method learns from one source domain. *native*: in the same way as from several. *split*: each
  batch is cut at random into three pseudo-domains. *shuffle*: images are paired within the batch.
  `single_source=native` switches both off.

## Shared hyper-parameters

{shared}

`itta train … --set name=value` sets a hyper-parameter. `itta train … --hparams-seed 1` draws all of them from their
ranges. Values in brackets are DomainBed's for 28-pixel data sets (small) and for DomainNet; `--regime` chooses.
"""
ADAPTERS_INDEX = """\
# Test-time methods

{generated}

After reading this page you can choose a test-time method by its paper and its needs.

```sh
itta list adapters            # the same on the screen, with every hyper-parameter
itta adapt MODEL DATA --adapter tent --set lr=1e-4 --guard
```

Each method works on its own copy of a trained model and learns from batches without labels.
[Adapt your own model](../adapt/own_model.md) says where to start. [The grid](../results/adaptation_grid.md) says what
the methods gained and lost.

{methods}

## Needs

{needs}

- **BN**: the backbone must have batch normalisation.
- **images**: the smallest batch that the method accepts.
- **from the source**: what the method uses from the source data beside the weights. It is stored with the model.
- **training**: the training method that must have trained the model.
- **changes**: the part of the model that moves.
- **predicts**: before or after its update on the same batch. A prediction made after the update has seen more.

`itta adapt … --set name=value` sets a hyper-parameter. [`itta tune`](../trust/tune.md) chooses the most important ones
on the source domains. With `--guard`, [the guard](../trust/guard.md) watches the method and takes harmful changes back.
"""
PAGE = """\
# {name}

{generated}

{about}

```sh
{command}
```

```text
{equations}
```

**Needs**: {needs}.

## Hyper-parameters

{own}{shared}Code: [`{source}`](../../{source}). [All methods](README.md).
"""
COMMANDS = {
    "algorithms": "itta train DATA --target DOMAIN --algorithm {name} --out DIR",
    "adapters": "itta adapt MODEL DATA --adapter {name}",
}
