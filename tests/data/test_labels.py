"""Labels reach the model as it counts its classes, or are refused."""

import dataclasses
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from families import model_of
from hydra_ensembles import HeadSet, prune
from hydra_ensembles.data import DataError, open_data
from hydra_ensembles.data.loading import labels_for
from hydra_ensembles.errors import HydraWarning

CLASSES = ["ant", "crane", "bee", "crane", "cat"]


@pytest.fixture
def member():
    """A member that names its five classes, two of them alike."""
    model = model_of("timm")
    member = prune(model, HeadSet.all(model))
    member.origin = dataclasses.replace(member.origin, classes=CLASSES)
    return member


def rows(path, **columns):
    pq.write_table(pa.table({"text": [str(i) for i in range(len(columns["label"]))], **columns}), path / "a.parquet")
    return open_data(path / "a.parquet")


def test_names_are_numbered_as_the_model_numbers_them(member, tmp_path):
    assert labels_for(member, rows(tmp_path, label=["cat", "bee", "ant"])).tolist() == [4, 2, 0]


def test_names_beside_numbers_decide_where_the_model_knows_them_all(member, tmp_path):
    named = rows(tmp_path, label=[0, 1, 0], **{"class": ["bee", "cat", "bee"]})
    assert labels_for(member, named).tolist() == [2, 4, 2]


def test_fractions_are_no_names_of_classes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,1.0\ny,0.5\n")
    with pytest.raises(DataError, match=r"row 1 of .* has label 0\.5; expected whole numbers, or names"):
        _ = open_data(path).labels
    assert open_data(path, classes=["0.5", "1.0"]).labels.tolist() == [1, 0]
    path.write_text("text,label\nx,v1\ny,0.5\n")
    assert open_data(path).classes == ["0.5", "v1"]


def test_a_name_that_two_classes_have_keeps_its_number(member, tmp_path):
    named = rows(tmp_path, label=[3, 1, 0], **{"class": ["crane", "crane", "ant"]})
    assert labels_for(member, named).tolist() == [3, 1, 0]


def test_numbers_with_names_that_the_model_does_not_know_stay_as_they_are(member, tmp_path):
    named = rows(tmp_path, label=[0, 1], **{"class": ["house cat", "honey bee"]})
    with pytest.warns(HydraWarning, match=r"does not know \(house cat, \.\.\.; the model's are ant, \.\.\.\)"):
        assert labels_for(member, named).tolist() == [0, 1]
    member.origin = dataclasses.replace(member.origin, classes=[f"LABEL_{label}" for label in range(5)])
    with warnings.catch_warnings(action="error"):  # these are no names
        assert labels_for(member, named).tolist() == [0, 1]


def test_labels_that_the_model_does_not_have_are_refused(member, tmp_path):
    with pytest.raises(DataError, match=r"class 'dog', which the model does not know; .*labels=False"):
        labels_for(member, rows(tmp_path, label=["cat", "dog"]))
    with pytest.raises(DataError, match="class 'crane', which the model does not know"):
        labels_for(member, rows(tmp_path, label=["cat", "ant", "crane"]))
    with pytest.raises(DataError, match=r"row 1 of .* has label 5, but the model has 5 classes, counted from 0"):
        labels_for(member, rows(tmp_path, label=[0, 5]))
    with pytest.raises(DataError, match="the model has 5 classes"):
        labels_for(model_of("bert"), rows(tmp_path, label=[0, 5]))


def test_a_name_that_the_model_does_not_know_is_no_number_where_others_have_moved(member, tmp_path):
    named = rows(tmp_path, label=[0, 1, 2], **{"class": ["bee", "cat", "frog"]})
    with pytest.raises(DataError, match="class 'frog', which the model does not know"):
        labels_for(member, named)
    assert labels_for(member, named[:2]).tolist() == [2, 4]


def test_numbers_stay_where_every_name_that_the_model_knows_has_its_number(member, tmp_path):
    named = rows(tmp_path, label=[0, 2, 4], **{"class": ["ant", "honey bee", "cat"]})
    assert labels_for(member, named).tolist() == [0, 2, 4]
