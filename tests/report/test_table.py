"""Tables: the best and second best as shown, and three renderings that say the same."""

import re
from html.parser import HTMLParser

import pytest

from hydra_ensembles.report import Column, Figure, Row, Table

ACCURACY = Column("accuracy", "Acc", better="higher", decimals=1, factor=100)
ECE = Column("ece", "ECE", better="lower", decimals=3)


def column_of(table, place):
    """The cells of one column of the Markdown, by hand."""
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    return [line.split("|")[1:-1][place].strip() for line in lines[2:]]


def one_column(column, *means, **rest):
    rows = [Row(f"row {place}", {column.key: Figure(mean)}) for place, mean in enumerate(means)]
    return Table([column], rows, **rest)


class Parsed(HTMLParser):
    """Tags, their attributes and all text, with every tag closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_the_best_is_bold_and_the_second_underlined_by_the_direction_of_the_column():
    assert column_of(one_column(ACCURACY, 0.9, 0.8, 0.95), 1) == ["<u>90.0</u>", "80.0", "**95.0**"]
    assert column_of(one_column(ECE, 0.01, 0.02, 0.03), 1) == ["**0.010**", "<u>0.020</u>", "0.030"]


def test_what_looks_the_same_is_marked_the_same():
    assert column_of(one_column(ACCURACY, 0.90011, 0.90049, 0.8, 0.80001, 0.1), 1) == [
        "**90.0**",
        "**90.0**",
        "<u>80.0</u>",
        "<u>80.0</u>",
        "10.0",
    ]
    assert column_of(one_column(ACCURACY, 0.9, 0.9), 1) == ["**90.0**", "**90.0**"]


def test_without_a_direction_or_with_nothing_to_compare_there_are_no_marks():
    assert column_of(one_column(Column("params", "Params", decimals=0), 1200, 3.4e6), 1) == ["1,200", "3,400,000"]
    assert column_of(one_column(ACCURACY, 0.9), 1) == ["90.0"]


def test_thousands_are_compared_as_numbers():
    time = Column("ms", "ms", better="lower", decimals=0)
    assert column_of(one_column(time, 1200, 999), 1) == ["<u>1,200</u>", "**999**"]


def test_rows_that_are_left_out_of_marking_take_no_mark_from_others():
    rows = [Row("oracle", {"accuracy": Figure(0.99)}, marked=False)]
    rows += [Row(name, {"accuracy": Figure(mean)}) for name, mean in (("a", 0.9), ("b", 0.8))]
    assert column_of(Table([ACCURACY], rows), 1) == ["99.0", "**90.0**", "<u>80.0</u>"]


def test_missing_cells_are_en_dashes_and_never_the_best():
    rows = [
        Row("a", {}),
        Row("b", {"ece": Figure(float("nan"))}),
        Row("c", {"ece": Figure(0.2)}),
        Row("d", {"ece": "x"}),
    ]
    assert column_of(Table([ECE], rows), 1) == ["–", "–", "0.200", "x"]


def test_a_small_negative_number_is_not_minus_nothing():
    assert column_of(one_column(ECE, -0.0001, 0.5), 1) == ["**0.000**", "<u>0.500</u>"]


def test_blocks_are_compared_by_themselves_and_named_once():
    rows = [Row("m", {"accuracy": Figure(mean)}, block=block) for block, mean in (("x", 0.1), ("x", 0.2), ("y", 0.9))]
    table = Table([ACCURACY], [*rows, Row("n", {"accuracy": Figure(0.8)}, block="y")], block_heading="Data")
    assert column_of(table, 0) == ["x", "", "y", ""]
    assert column_of(table, 2) == ["<u>10.0</u>", "**20.0**", "**90.0**", "<u>80.0</u>"]
    assert [tag for tag, _ in Parsed(table.html()).tags].count("tbody") == 2
    assert table.latex().count(r"\midrule") == 2


def test_where_columns_are_methods_the_best_is_sought_in_each_row():
    methods = [Column(name, name) for name in ("one", "other")]
    rows = [
        Row("Acc ↑", {"one": Figure(0.8), "other": Figure(0.9)}, like=ACCURACY),
        Row("ECE ↓", {"one": Figure(0.8), "other": Figure(0.9)}, like=ECE),
    ]
    table = Table(methods, rows, across=True)
    assert column_of(table, 1) == ["<u>80.0</u>", "**0.800**"]
    assert column_of(table, 2) == ["**90.0**", "<u>0.900</u>"]


def test_several_seeds_show_their_spread_and_a_row_with_other_seeds_says_so():
    rows = [Row(name, {"accuracy": Figure(0.9, 0.0123, seeds=3)}) for name in ("a", "b")]
    table = Table([ACCURACY], [*rows, Row("c", {"accuracy": Figure(0.8)}), Row("d", {"accuracy": Figure(0.7, 0.1, 2)})])
    assert column_of(table, 0) == ["a", "b", "c †", "d ‡"]
    assert column_of(table, 1) == ["**90.0** ± 1.2", "**90.0** ± 1.2", "<u>80.0</u>", "70.0 ± 10.0"]
    assert table.notes == ["± standard deviation over 3 seeds", "† one seed", "‡ 2 seeds"]
    assert table.markdown().endswith("\n\n± standard deviation over 3 seeds; † one seed; ‡ 2 seeds")


def test_the_sign_is_of_rows_with_fewer_seeds_even_where_they_are_the_most():
    rows = [Row(name, {"accuracy": Figure(0.8)}) for name in ("a", "b")]
    table = Table([ACCURACY], [*rows, Row("c", {"accuracy": Figure(0.9, 0.01, seeds=3)}), Row("d", {})])
    assert column_of(table, 0) == ["a †", "b †", "c", "d"]
    assert table.notes == ["± standard deviation over 3 seeds", "† one seed"]


def test_one_seed_everywhere_needs_no_note():
    assert one_column(ACCURACY, 0.9, 0.8).notes == []


def test_an_interval_is_shown_where_there_is_no_standard_deviation():
    cells = [Figure(0.9, interval=(0.88, 0.921)), Figure(0.9, 0.01, 2, interval=(0.88, 0.92))]
    rows = [Row("m", {"accuracy": cell}, marked=False) for cell in cells]
    assert column_of(Table([ACCURACY], rows), 1) == ["90.0 [88.0, 92.1]", "90.0 ± 1.0"]


def test_markdown_has_title_groups_arrows_and_alignment():
    columns = [Column("heads", "Heads", is_text=True), Column("auroc", "AUROC", "OOD average", better="higher")]
    table = Table(columns, [Row("a|b", {"heads": "8x3", "auroc": Figure(1.0)})], "Name", "A caption.")
    assert table.markdown().splitlines() == [
        "**Name.** A caption.",
        "",
        "| Method | Heads | OOD average: AUROC ↑ |",
        "|---|---|--:|",
        r"| a\|b | 8x3 | 1.00 |",
    ]


def test_latex_is_booktabs_with_groups_marks_and_escapes():
    columns = [ACCURACY, Column("auroc", "AUROC", "OOD #1", better="higher"), Column("fpr95", "FPR_95", "OOD #1")]
    rows = [
        Row("A & B", {"accuracy": Figure(0.9, 0.01, 2), "auroc": Figure(1.0), "fpr95": "100 %"}),
        Row("C", {"accuracy": Figure(0.8, 0.01, 2)}),
    ]
    lines = Table(columns, rows, title="50 % of heads").latex().splitlines()
    assert lines == [
        r"\begin{table}",
        r"\centering",
        r"\caption{\textbf{50 \% of heads.}}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" &  & \multicolumn{2}{c}{OOD \#1} \\",
        r"\cmidrule(lr){3-4}",
        r"Method & Acc $\uparrow$ & AUROC $\uparrow$ & FPR\_95 \\",
        r"\midrule",
        r"A \& B & \textbf{90.0} $\pm$ 1.0 & 1.00 & 100 \% \\",
        r"C & \underline{80.0} $\pm$ 1.0 & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\footnotesize $\pm$ standard deviation over 2 seeds",
        r"\end{table}",
    ]


def test_a_row_of_latex_has_as_many_cells_as_columns():
    columns = [Column(str(place), f"{place}", group="ab"[place // 2]) for place in range(4)]
    rows = [Row("m", {"0": Figure(1.0)}, block="x"), Row("m", {"3": "✓"}, block="y")]
    latex = Table(columns, rows).latex()
    (aligned,) = re.findall(r"begin{tabular}{(\w+)}", latex)
    for line in latex.splitlines():
        if line.endswith(r"\\"):
            spanned = [int(width) - 1 for width in re.findall(r"multicolumn{(\d)}", line)]
            assert line.count("&") + 1 + sum(spanned) == len(aligned) == 6


def test_html_is_a_table_with_scopes_and_marks_and_without_styles():
    columns = [ACCURACY, Column("auroc", "AUROC", "OOD", better="higher"), Column("fpr95", "FPR95", "OOD")]
    rows = [Row(name, {"accuracy": Figure(mean), "auroc": Figure(mean)}) for name, mean in (("a", 0.9), ("b", 0.8))]
    html = Table(columns, rows, "Title", "caption").html()
    parsed = Parsed(html)
    scopes = [attributes["scope"] for tag, attributes in parsed.tags if tag == "th"]
    assert scopes == ["colgroup", "col", "col", "col", "col", "row", "row"]
    assert parsed.rows[1:] == [
        ["Method", "Acc ↑", "AUROC ↑", "FPR95"],
        ["a", "90.0", "0.90", "–"],
        ["b", "80.0", "0.80", "–"],
    ]
    assert html.count("<strong>90.0</strong>") == html.count("<u>80.0</u>") == 1
    assert "<caption><strong>Title.</strong> caption</caption>" in html
    assert all(set(attributes) <= {"class", "scope", "colspan", "rowspan"} for _, attributes in parsed.tags)


@pytest.mark.parametrize("place", ["title", "caption", "row", "column", "group", "cell", "block", "unit"])
def test_html_escapes_whatever_it_is_given(place):
    evil = '<script>alert("&")</script>'
    at = {
        name: evil if name == place else "fine"
        for name in ("title", "caption", "row", "column", "group", "cell", "block", "unit")
    }
    columns = [Column("k", at["column"], at["group"], unit=at["unit"]), Column("t", "words", is_text=True)]
    table = Table(
        columns, [Row(at["row"], {"k": Figure(1.0), "t": at["cell"]}, block=at["block"])], at["title"], at["caption"]
    )
    assert "<script" not in table.html()
    assert "&lt;script&gt;" in table.html()
    assert "<script" not in table.markdown()
