"""Single values of rows, as they are found in the wild."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.tasks import fields

IDS = ["tests/a.py::test_x[1-2]", "tests/a.py::test y [ä b]", "", 'it\'s "quoted"', "a, b", "x\\y"]


@pytest.mark.parametrize(
    "written",
    [
        IDS,
        tuple(IDS),
        json.dumps(IDS),
        json.dumps(json.dumps(IDS)),
        repr(IDS),
        repr(tuple(IDS)),
        np.array(IDS, dtype=object),
        str(np.array(IDS, dtype=object)),
        repr(np.array(IDS, dtype=object)),
    ],
    ids=["list", "tuple", "json", "json twice", "python", "python tuple", "array", "array str", "array repr"],
)
def test_lists_in_every_spelling(written: object) -> None:
    assert fields.string_list(written, "tests") == IDS


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",))), min_size=1))
def test_json_python_and_numpy_lists_come_back(values: list[str]) -> None:
    assert fields.string_list(json.dumps(values), "x") == values
    assert fields.string_list(repr(values), "x") == values


NOTHING = [
    None,
    "",
    "[]",
    "nan",
    "None",
    [],
    float("nan"),
    "()",
    "   ",
    "array()",
    "np.array( )",
    "list(, dtype=object)",
]


@pytest.mark.parametrize("nothing", NOTHING)
def test_nothing_is_an_empty_list(nothing: object) -> None:
    assert fields.string_list(nothing, "x") == []


def test_plain_text_is_one_name_a_line() -> None:
    assert fields.string_list("tests/a.py::test_b", "x") == ["tests/a.py::test_b"]
    assert fields.string_list("one\ntwo\n", "x") == ["one", "two"]


def test_a_list_cut_by_numpy_is_refused() -> None:
    long = str(np.array([f"t{i}" for i in range(2000)], dtype=object))
    assert "..." in long
    with pytest.raises(ValueError, match="cut by numpy"):
        fields.string_list(long, "x")


@pytest.mark.parametrize(
    "bad", [[1], [None], {"a": 1}, 3, True, "['a' 'b', 'c']", "[a, b]", "['a'", ["\ud800"], "[['a']]"]
)
def test_what_is_no_list_of_strings_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="x "):
        fields.string_list(bad, "x")


@pytest.mark.parametrize("bad", ["../x", "a/b", "a b", ".hidden", "-rf", "a\x00", "", "x" * 201, "a\nb", None, ["a"]])
def test_ids_that_cannot_name_a_folder(bad: object) -> None:
    with pytest.raises(ValueError):
        fields.identifier(bad)


@pytest.mark.parametrize(
    "good", ["django__django-11099", "oauthlib__oauthlib.1fd5.combine_file__09v", "ä-1", "a+b@c=d"]
)
def test_ids_of_the_field(good: str) -> None:
    assert fields.identifier(good) == good


@pytest.mark.parametrize("bad", ["$(rm -rf ~)", "a b", "-x", "a;b", "a\nb", "`x`"])
def test_commits_and_images_are_one_harmless_word(bad: str) -> None:
    with pytest.raises(ValueError):
        fields.revision(bad)
    with pytest.raises(ValueError):
        fields.image(bad)


@pytest.mark.parametrize("bad", ["relative", "/a/../b", "/a\nb"])
def test_workdir_is_an_absolute_path(bad: str) -> None:
    with pytest.raises(ValueError, match="workdir"):
        fields.workdir(bad)
    assert fields.workdir(None) == "/testbed"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=8
    )
)
def test_no_value_raises_anything_but_value_errors(value: object) -> None:
    for read in (
        lambda: fields.string_list(value, "x"),
        lambda: fields.text(value, "x"),
        lambda: fields.mapping(value, "x"),
        lambda: fields.flag(value, "x"),
        lambda: fields.identifier(value),
        lambda: fields.revision(value),
        lambda: fields.image(value),
        lambda: fields.workdir(value),
    ):
        with contextlib.suppress(ValueError):
            read()
