"""The paper's tables in the paper's layouts."""

import pytest

from hydra_ensembles.report import LAYOUTS, SummaryError, paper_table

# Table 3 as printed; in the text of the paper second-best figures stand in <u>, the best ones have lost their bold.
TABLE_3 = """
SINGLE	12	-	<u>73.65</u>	0.36	0.98	8.68	8.57	70.76	75.20	37.73
TEMP. SCALING	12	-	<u>73.65</u>	0.36	0.90	4.03	<u>3.80</u>	70.76	75.20	37.73
BAYESVLM	12	✓	73.15	0.36	0.95	6.08	5.84	71.84	74.65	39.08
ViLU	12	✓	-	-	-	9.50	8.86	75.38	71.59	43.81
TAYLOR	10	-	60.75	0.53	1.65	13.76	13.67	67.44	79.41	33.64
CIRCAVG	10	-	71.91	<u>0.38</u>	0.99	4.00	4.11	76.88	<u>68.26</u>	<u>47.64</u>
HYDRA-ENS (CIRC)	10x3	-	74.00	0.36	<u>0.93</u>	3.49	3.35	<u>76.82</u>	68.05	47.85
"""
METRICS = ("accuracy", "brier", "nll", "ece", "aece", "auroc", "fpr95", "aupr")


def printed():
    return [line.split("\t") for line in TABLE_3.strip().splitlines()]


def figure(mean, std=None, seeds=1):
    return {"mean": mean, "std": std, "seeds": seeds}


def some_summary():
    ood = {f"{metric}{place}": figure(50.0) for metric in ("auroc", "fpr95", "aupr") for place in ("", "_near", "_far")}
    ood |= {f"{metric}/{name}": figure(40.0) for metric in ("auroc", "fpr95", "aupr") for name in ("yelp", "trec")}
    one = {"accuracy": figure(90.0), "ece": figure(0.01), **ood}
    other = {metric: figure(entry["mean"] + 1) for metric, entry in one.items()}
    return {"methods": {"one": one, "other": other}, "groups": {"near": ["yelp"], "far": ["trec"]}}


def cells(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_papers_own_figures_get_the_papers_own_second_places():
    methods = {}
    for name, heads, train, *values in printed():
        plain = [value.removeprefix("<u>").removesuffix("</u>") for value in values]
        numbers = {m: float(v) / (100 if "ece" in m else 1) for m, v in zip(METRICS, plain, strict=True) if v != "-"}
        methods[name] = {"heads": heads, "train": train == "✓", **{m: figure(v) for m, v in numbers.items()}}
    found = cells(paper_table(3, {"methods": methods}).markdown())[2:]
    for mine, (name, heads, _, *values) in zip(found, printed(), strict=True):
        assert mine[:2] == [name, heads]
        for metric, cell, value in zip(METRICS, mine[3:], values, strict=True):
            # The second best ECE has no underline in the text.
            expected = "<u>4.00</u>" if (name, metric) == ("CIRCAVG", "ece") else value.replace("-", "–")
            assert cell.replace("**", "") == expected
    assert [row[3] for row in found].count("**74.00**") == 1
    assert [row[4] for row in found].count("**0.36**") == 4


@pytest.mark.parametrize("number", range(1, 29))
def test_every_table_can_be_made_of_a_summary_that_lacks_most_of_it(number):
    table = paper_table(number, some_summary())
    assert f"Table {number} " in table.caption
    assert "–" in table.markdown() or number in (18, 19, 20, 21, 22, 23, 25, 26)
    assert table.latex().startswith(r"\begin{table}")
    assert table.html().endswith("</table>")


def test_the_paper_has_28_tables_and_no_other():
    assert sorted(LAYOUTS) == list(range(1, 29))
    with pytest.raises(SummaryError, match="no Table 29; its tables are 1 to 28"):
        paper_table(29, some_summary())


def test_several_data_sets_stand_below_each_other_and_are_compared_by_themselves():
    table = cells(paper_table(12, {"A": some_summary(), "B": some_summary()}).markdown())
    assert table[0][:3] == ["Data", "Method", "Acc ↑"]
    assert [row[:3] for row in table[2:]] == [
        ["A", "one", "<u>90.00</u>"],
        ["", "other", "**91.00**"],
        ["B", "one", "<u>90.00</u>"],
        ["", "other", "**91.00**"],
    ]


def test_by_data_set_metrics_are_blocks_with_a_mean_at_the_end():
    second = some_summary()
    second["methods"]["one"]["accuracy"] = figure(98.0)
    table = cells(paper_table(24, {"A": some_summary(), "B": second}).markdown())
    assert table[0] == ["Metric", "Method", "Heads", "Train", "A", "B", "Average"]
    assert table[2] == ["Acc ↑", "one", "–", "–", "<u>90.00</u>", "**98.00**", "**94.00**"]
    assert table[3] == ["", "other", "–", "–", "**91.00**", "<u>91.00</u>", "<u>91.00</u>"]
    assert [row[0] for row in table[2:] if row[0]] == ["Acc ↑", "Brier ↓", "NLL ↓", "ECE % ↓", "aECE % ↓"]


def test_unknown_sets_are_columns_or_rows_and_those_the_summary_names():
    beside = cells(paper_table(18, some_summary()).markdown())
    assert beside[0] == ["Method"] + [
        f"{place}: {metric}" for place in ("yelp", "Near-OOD average") for metric in ("AUROC ↑", "FPR95 ↓", "AUPR ↑")
    ]
    assert beside[2] == [
        "one",
        "<u>40.00</u>",
        "**40.00**",
        "<u>40.00</u>",
        "<u>50.00</u>",
        "**50.00**",
        "<u>50.00</u>",
    ]
    below = cells(paper_table(26, some_summary(), unmarked=["other"]).markdown())
    assert below[0] == ["Data", "Metric", "one", "other"]
    assert [row[0] for row in below[2::3]] == ["yelp", "Near-OOD average", "trec", "Far-OOD average", "OOD average"]
    assert below[3] == ["", "FPR95 ↓", "40.00", "41.00"]
    del (without := some_summary())["groups"]
    assert cells(paper_table(18, without).markdown())[0][4] == "amazon: AUROC ↑"


def test_a_table_of_one_data_set_refuses_several():
    with pytest.raises(SummaryError, match="of one data set, found A, B"):
        paper_table(18, {"A": some_summary(), "B": some_summary()})


def test_centroid_distances_show_the_difference_of_two_models():
    values = {"circuit": (1.66, 2.59), "dense": (1.32, 2.36)}  # the paper's Texture row
    methods = {
        name: {"euclidean/texture": figure(e), "mahalanobis/texture": figure(m), "euclidean": figure(e)}
        for name, (e, m) in values.items()
    }
    table = cells(paper_table(5, {"methods": methods}).markdown())
    assert table[2] == ["texture", "1.66", "2.59", "1.32", "2.36", "+0.34", "+0.23"]
    assert table[3] == ["Average", "1.66", "–", "1.32", "–", "+0.34", "–"]


def test_sources_of_diversity_are_check_marks():
    summary = some_summary()
    summary["methods"]["one"] |= {"varied_pruning": True, "varied_seed": False}
    assert cells(paper_table(8, summary).markdown())[2][:4] == ["one", "✓", "×", "–"]
    assert r"one & \checkmark{} & $\times$ & --" in paper_table(8, summary).latex()


def test_controls_are_left_out_of_marking():
    table = cells(paper_table(2, some_summary(), unmarked=["other"]).markdown())
    assert [row[2] for row in table[2:]] == ["90.00", "91.00"]


def test_intervals_are_shown_when_asked_for():
    summary = some_summary()
    summary["methods"]["one"]["accuracy"]["interval"] = [88.0, 92.0]
    assert cells(paper_table(2, summary, intervals=True).markdown())[2][2] == "<u>90.00</u> [88.00, 92.00]"
    assert cells(paper_table(2, summary).markdown())[2][2] == "<u>90.00</u>"
