"""The page: one HTML file that needs nothing else, for light and dark, wide and narrow, eyes and ears."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from hydra_ensembles import __version__
from hydra_ensembles.optional import import_extra
from hydra_ensembles.report.first_screen import FirstScreen
from hydra_ensembles.report.looks import DARK, LIGHT, Look
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.sections import Section
from hydra_ensembles.report.words import each, many, model_name

GLOSSARY = {
    "Hydra": "Several pruned copies of one network, fused into a single network that answers with all of them at once.",
    "Member": "One of these copies: the network with some attention heads removed, and trained a little further.",
    "Known, unknown": "Known inputs are of the kind the network was trained for. Unknown ones (out of distribution, "
    "OOD) are not: no answer to them can be right. Near sets look much like known inputs, far ones do not.",
    "Confidence": "The probability that the model gives to its own answer.",
    "ECE": "Expected calibration error: how far stated confidence and share of right answers lie apart, on average "
    "over 15 bins of confidence. 0 is perfect.",
    "AUROC": "Of all pairs of one known and one unknown input, the share in which the unknown one gets the higher "
    "score. 0.5 is a coin toss, 1 is perfect.",
    "FPR95": "The share of known inputs that are called unknown when 95 % of the unknown ones are to be found. 0 is "
    "perfect.",
    "Risk–coverage": "The error rate (risk) among the share of inputs (coverage) that are answered with the most "
    "confidence. AURC is the area under that curve; lower is better.",
    "NLL, Brier": "How far probabilities lie from the truth; being sure and wrong counts most. Lower is better.",
    "95 % interval": "How far a figure would move with other inputs of the same kind: the middle 95 % of what "
    "resampled inputs give, for this one trained model. Two models are compared on the same inputs.",
}


def page(
    title: str,
    screens: Sequence[FirstScreen],
    looks: Mapping[str, Look],
    sections: Sequence[Section],
    drawings: Mapping[str, str],
    runs: Sequence[Run],
    has_files: bool,
) -> str:
    """The whole page; `drawings` are the plates of the sections as SVG, by key."""
    jinja2 = import_extra("jinja2", "report", "writing the page")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files("hydra_ensembles.report").joinpath("page.html.jinja").read_text("utf-8"))
    text: str = template.render(
        title=title,
        screens=screens,
        looks=looks,
        sections=sections,
        drawings=drawings,
        runs=runs,
        facts={run.name: _facts(run) for run in runs},
        glossary=GLOSSARY,
        light=LIGHT,
        dark=DARK,
        version=__version__,
        has_files=has_files,
    )
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _facts(run: Run) -> str:
    """Where the figures come from, without any path of the machine."""
    told = run.models[run.subject]
    facts = [f"Intervals from {many(told['resamples'], 'resample')} of the rows, seed {told['seed']}"]
    if run.recipe:
        model = model_name(str(run.recipe.get("backbone", {}).get("model", "")))
        facts.insert(0, f"Recipe {run.recipe.get('name')}, backbone {model}, seed {run.recipe.get('seed')}")
    if run.seconds:
        slowest = sorted(run.seconds.items(), key=lambda stage: -stage[1])[:3]
        facts.append(
            f"The run took {sum(run.seconds.values()) / 60:.0f} minutes, most of it for "
            f"{each([(stage, f'{seconds:.0f} s') for stage, seconds in slowest])}"
        )
    facts.append("Rows by set: " + each([(name, f"{rows:,}") for name, rows in told["rows"].items()]))
    return ". ".join(facts) + "."
