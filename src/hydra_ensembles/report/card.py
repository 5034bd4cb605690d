"""The model card of a run's hydra: what it is, what it was measured at, what it is for and what not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.report.first_screen import first_screen
from hydra_ensembles.report.runs import HYDRA, ReportError, Run, read_run
from hydra_ensembles.report.words import model_name, short
from hydra_ensembles.store import read_config

_ANSWERS = {"accuracy": "accuracy", "brier": "Brier", "nll": "NLL", "ece": "ECE"}
_UNKNOWN = {"auroc": "OOD AUROC", "fpr95": "FPR95"}


def model_card(run: str | Path, licence: str | None = None, repo: str = "owner/name") -> str:
    """Markdown, with the front matter that the Hugging Face hub reads.

    Args:
        run: a directory that `hydra-ens run` wrote.
        licence: of the backbone's weights, from which a hydra's come, as the hub calls it ("apache-2.0"). Without it
            the card says that it is not stated.
        repo: what the example loads.
    """
    found = read_run(run)
    if found.subject != HYDRA or not (found.directory / HYDRA / "config.json").is_file():
        raise ReportError(f"{run} holds no hydra; a card speaks of one that `hydra-ens run` made")
    config = read_config(found.directory / HYDRA)
    screen = first_screen(found, {model: model for model in found.models})
    takes = "texts" if "tokenizer" in (config.get("preprocess") or {}) else "images"
    answers = "\n".join(f"- **{answer.question}** {answer.text}" for answer in screen.answers)
    limits = "\n".join(f"- {warning}" for warning in screen.warnings)
    return _CARD.format(
        front=_front_matter(takes, licence),
        title=found.name,
        members=found.models[HYDRA]["about"]["members"],
        backbone=_backbone(found.recipe),
        question=screen.question,
        compared=screen.compared,
        verdict=screen.verdict,
        answers=answers,
        table=_table(found),
        example=_example(takes, repo),
        takes=takes,
        fitted=_FITTED if found.models[HYDRA]["about"].get("decisions") else _NOT_FITTED,
        limits=limits,
        licence=f"`{licence}`" if licence else "**not stated** by whoever made this card; find it out before using",
    )


def _front_matter(takes: str, licence: str | None) -> str:
    fields: dict[str, Any] = {
        "library_name": "hydra-ensembles",
        "pipeline_tag": "text-classification" if takes == "texts" else "image-classification",
        "tags": ["uncertainty", "ensemble", "out-of-distribution", "calibration"],
    }
    # JSON is YAML.
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *([f"license: {licence}"] if licence else []), *lines, "---"])


def _backbone(recipe: Mapping[str, Any]) -> str:
    reference = (recipe.get("backbone") or {}).get("model", "a backbone that its recipe does not name")
    return f"`{model_name(str(reference))}`"


def _table(run: Run) -> str:
    """The hydra beside what it came from."""
    heads = ["", *_ANSWERS.values(), *_UNKNOWN.values(), "parameters", "multiply-adds"]
    rows = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for model, told in run.models.items():
        figures = told["figures"]
        cells = [_percent_or_number(name, figures["answers"][ID_TEST].get(name)) for name in _ANSWERS]
        unknown = figures.get(f"ood/{told['score']}", {}).get(AVERAGE, {})
        cells += [_percent_or_number(name, unknown.get(name)) for name in _UNKNOWN]
        cost = run.costs.get("models", {}).get(model, {})
        cells += [short(cost[name]) if name in cost else "–" for name in ("params", "mult_adds")]
        rows.append([model, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _percent_or_number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if name in ("accuracy", "auroc", "fpr95") else f"{value:.3f}"


def _example(takes: str, repo: str) -> str:
    inputs = '["a text", "another"]' if takes == "texts" else '["a.jpg", "b.jpg"]'
    return f"""from hydra_ensembles import Hydra
from hydra_ensembles.data import prepare

hydra = Hydra.from_pretrained("{repo}")
prediction = hydra.predict(prepare(hydra, {inputs}))
print(prediction.label, prediction.confidence, prediction.epistemic, prediction.decision)"""


_FITTED = """Thresholds were set on the data of this run; set them again on your
own (`OODDetector`, `ConformalSets`, `TemperatureScaler`)."""
_NOT_FITTED = """It has no thresholds yet; set them on your own data
(`OODDetector`, `ConformalSets`, `TemperatureScaler`)."""
_CARD = """{front}

# {title}

A hydra of {members} members, made with hydra-ensembles from {backbone}: an ensemble that runs as a single network and
says how sure it is. {question}

## Measured

{compared} {verdict}

{answers}

{table}

## Use

```bash
pip install 'hydra-ensembles[hub,data]'
```

```python
{example}
```

## Intended use

Classifying {takes} of the kind it was trained for, where it matters to know when not to rely on an answer: hold back
what it is unsure of, and what it calls out of distribution. {fitted}

## Limits

{limits}
- Inputs that are strange in another way than those it was tested with, if any, may look familiar to it.
- Not for regression, several labels at once, token tasks or generation.
- Whatever its backbone learned of prejudice and error, it has too.

## Licence

The weights come from those of the backbone, whose licence is {licence}. hydra-ensembles itself is Apache-2.0. The
method: *Ensembling Pruned Attention Heads for Uncertainty-Aware Efficient Transformers*
([arXiv 2510.18358](https://arxiv.org/abs/2510.18358)).
"""
