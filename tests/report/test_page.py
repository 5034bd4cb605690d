"""The page: small, by itself, readable by ear and by keyboard; what is private stays out where asked."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest

from constructed_runs import constructed_run
from hydra_ensembles.report import write_report

VOID = {"meta", "link", "img", "br", "input", "hr"}
TRICK = "<script>alert('x')</script> & so on " + "word " * 60
SECRET = "the patient's name is Grete"


class Elements(HTMLParser):
    """Every element with its attributes, its text, and those it stands in; badly nested tags are an error."""

    def __init__(self, text):
        super().__init__()
        self.found, self._open = [], []
        self.feed(text)
        assert not self._open, [one.tag for one in self._open]

    def handle_starttag(self, tag, attributes):
        one = SimpleNamespace(tag=tag, attributes=dict(attributes), text="", inside=tuple(self._open))
        self.found.append(one)
        if tag not in VOID:
            self._open.append(one)

    def handle_startendtag(self, tag, attributes):
        self.found.append(SimpleNamespace(tag=tag, attributes=dict(attributes), text="", inside=tuple(self._open)))

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        for one in self._open:
            one.text += data

    def called(self, *tags):
        return [one for one in self.found if one.tag in tags]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The page of 10 unknown sets and 3 models, its directory, and where the run lies."""
    run = constructed_run(tmp_path_factory.mktemp("runs") / "large", unknown=10, rows=120, texts=[TRICK, SECRET])
    report = write_report([run], files=False)
    return SimpleNamespace(run=run, path=report.page, text=report.page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def elements(large):
    return Elements(large.text)


def test_ten_unknown_sets_and_three_models_take_less_than_5_mb(large):
    assert large.path == large.run / "report" / "report.html"
    assert large.path.stat().st_size < 5e6
    for number in range(10):
        assert f"telling set-{number} from known inputs" in large.text


def test_the_page_asks_nothing_of_any_network(large, elements):
    for one in elements.found:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = one.attributes.get(name, "")
            assert value.startswith(("#", "data:")) or not value, (one.tag, value)
    assert "@import" not in large.text
    assert "http" not in large.text
    assert not elements.called("script", "iframe", "object", "embed")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", large.text))


def test_ids_are_unique_and_whatever_is_referred_to_is_there(elements):
    ids = [one.attributes["id"] for one in elements.found if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    for one in elements.found:
        referred = one.attributes.get("aria-labelledby", "").split()
        referred += [one.attributes["href"][1:]] if one.attributes.get("href", "").startswith("#") else []
        assert set(referred) <= set(ids), one.attributes


def test_clip_paths_and_markers_stay_with_their_figure(large):
    ids = re.findall(r' id="([^"]+)"', large.text)
    for target in re.findall(r"url\(#([^)]+)\)", large.text):
        assert target in ids


def test_every_figure_has_words_with_numbers_for_those_who_cannot_see_it(elements):
    by_id = {one.attributes["id"]: one for one in elements.found if "id" in one.attributes}
    drawings = [one for one in elements.called("svg") if one.attributes.get("aria-hidden") != "true"]
    assert len(drawings) >= 30
    for one in drawings:
        assert one.attributes["role"] == "img"
        title, finding = (by_id[name].text for name in one.attributes["aria-labelledby"].split())
        assert title
        assert re.search(r"\d", finding)
        assert one.inside[-1].tag == "figure"
        assert [text.text for text in elements.called("title") if one in text.inside] == [title.rstrip(".")]


def test_headings_go_down_one_level_at_a_time(elements):
    levels = [int(one.tag[1]) for one in elements.called("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_page_says_its_language_width_schemes_and_way_past_the_menu(large, elements):
    (page,) = elements.called("html")
    assert page.attributes["lang"] == "en"
    assert any(one.attributes.get("name") == "viewport" for one in elements.called("meta"))
    for rule in ("prefers-color-scheme: dark", "prefers-reduced-motion", "@media print", ":focus-visible"):
        assert rule in large.text
    first_link = elements.called("a")[0]
    assert first_link.attributes["href"] == "#summary"
    assert len(elements.called("main")) == len(elements.called("nav")) == 1


def test_tables_scroll_in_boxes_of_their_own_that_a_keyboard_reaches(elements):
    tables = elements.called("table")
    assert tables
    for one in tables:
        box = one.inside[-1]
        assert box.attributes["class"] == "box"
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["aria-label"]


def test_colours_of_figures_are_those_of_the_scheme(large):
    drawings = "".join(re.findall(r"<svg.*?</svg>", large.text, flags=re.DOTALL))
    assert "currentColor" in drawings
    assert "var(--line-1)" in drawings
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings)


def test_numbers_in_figures_are_those_of_the_captions(large, elements):
    caption = next(one.text for one in elements.called("figcaption") if "telling set-9" in one.text)
    figure = next(one for one in elements.called("figure") if caption in one.text)
    for auroc in re.findall(r"(?:base|members|hydra) (0\.\d{3})", caption):
        assert any(auroc in one.text for one in elements.called("text") if figure in one.inside)


def test_inputs_are_escaped_and_cut(large, elements):
    quotes = [one.text for one in elements.called("blockquote")]
    assert quotes
    assert all(len(one) <= 202 for one in quotes)
    assert "alert('x')" not in large.text.replace("&#39;", "'") or "&lt;script&gt;" in large.text
    assert "<script" not in large.text


def test_no_path_of_the_machine_is_on_the_page(large):
    assert str(large.run.parent) not in large.text


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run, its page with inputs, and its whole report without."""
    place = tmp_path_factory.mktemp("small")
    texts = [SECRET] * 40  # every set is made of them: whichever inputs were shown, one would be among them
    run = constructed_run(place / "run", unknown=1, rows=40, resamples=20, texts=texts)
    shown = write_report([run], place / "shown", files=False).page
    return SimpleNamespace(run=run, shown=shown, silent=write_report([run], place / "silent", examples=False))


def test_private_inputs_are_left_out_where_asked(small):
    assert SECRET in small.shown.read_text().replace("&#39;", "'")
    written = [small.silent.page, *small.silent.figures, *small.silent.tables]
    assert len(written) > 20
    for path in written:
        assert b"Grete" not in path.read_bytes(), path


def test_figures_and_tables_are_files_too(small):
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert {path.suffix for path in small.silent.figures} == set(starts)
    for path in small.silent.figures:
        assert path.read_bytes().startswith(starts[path.suffix])
    tables = {path.name: path.read_text() for path in small.silent.tables}
    assert "**" in tables["main.md"]
    assert "<u>" in tables["main.md"]
    assert r"\textbf{" in tables["main.tex"]


def test_the_same_run_gives_the_same_page(small, tmp_path):
    again = write_report([small.run], tmp_path, files=False).page
    assert again.read_text() == small.shown.read_text()
