from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.lines import KIT_MARK, MASK, MAX_LINE, masked, metrics_in, secrets_of, shown


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("plain", "plain"),
        (" 10%|#    |\r 50%|###  |\r100%|#####|", "100%|#####|"),
        ("done\r", "done"),
        ("Epoch 1\x08\x08 2", "Epoch 2"),
        ("\x1b[2K\x1b[1Gloading", "loading"),
        ("\x1b[31mred\x1b[0m stays", "\x1b[31mred\x1b[0m stays"),
        ("\x1b]0;title\x07text", "text"),
        ("nul\x00and bell\x07", "nuland bell"),
        ("tabs\tstay", "tabs\tstay"),
        ("", ""),
    ],
)
def test_a_line_is_stored_as_a_terminal_would_leave_it(printed: str, seen: str) -> None:
    assert shown(printed) == seen


def test_a_line_without_end_is_cut_and_says_by_how_much() -> None:
    assert shown("x" * (MAX_LINE + 7)) == "x" * MAX_LINE + "… [7 more characters]"


@given(st.text())
def test_what_is_shown_holds_no_control_character_but_tabs_and_colours(text: str) -> None:
    left = shown(text).replace("\x1b", "").replace("\t", "")

    assert not any(ord(c) < 32 and c not in "\n\r" for c in left)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "hf_abcdefghijklmnopqrstuv",
        "starling_0123456789abcdefABCDEF",
    ],
)
def test_what_looks_like_a_key_is_masked_wherever_it_stands(secret: str) -> None:
    assert masked(f"using {secret} now") == f"using {MASK} now"


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("password=hunter22 ok", f"password={MASK} ok"),
        ('"api_key": "abcd1234"', f'"api_key": "{MASK}"'),
        ("DB_PASSWORD: s3cret-word", f"DB_PASSWORD: {MASK}"),
        ("Authorization: Bearer abcdefghijklmnop", f"Authorization: Bearer {MASK}"),
        ("postgres://u:pa55word@host/db", f"postgres://u:{MASK}@host/db"),
        ("the password is long", "the password is long"),
        ("loss=0.25 key=3", "loss=0.25 key=3"),
    ],
)
def test_named_secrets_are_masked_and_ordinary_words_are_not(printed: str, seen: str) -> None:
    assert masked(printed) == seen


def test_parameters_named_like_secrets_are_masked_by_their_value() -> None:
    known = secrets_of({"wandb_key": "correct horse", "epochs": 3, "token": "ab"})

    assert known == ("correct horse",)
    assert masked("key is correct horse!", known) == f"key is {MASK}!"


def test_a_metric_line_gives_its_numbers_and_its_step() -> None:
    found = metrics_in("[metric] step=12 loss=0.31 val/accuracy=9.2e-1 note=words")

    assert [(m.name, m.step, m.value) for m in found] == [
        ("loss", 12, 0.31),
        ("val/accuracy", 12, 0.92),
    ]


def test_a_metric_without_step_and_one_that_is_no_number_are_told_apart() -> None:
    found = metrics_in("  [metric] loss=nan best=inf accuracy=0.5")

    assert [(m.name, m.step, m.value) for m in found] == [
        ("loss", None, None),
        ("best", None, None),
        ("accuracy", None, 0.5),
    ]


def test_the_kits_lines_are_read_as_json() -> None:
    line = KIT_MARK + "starling " + json.dumps({"metrics": {"loss": 0.5, "x": None}, "step": 3})

    assert [(m.name, m.step, m.value) for m in metrics_in(line)] == [
        ("loss", 3, 0.5),
        ("x", 3, None),
    ]


@given(st.text() | st.text().map(lambda text: KIT_MARK + "starling " + text))
def test_no_line_however_odd_breaks_the_reading(text: str) -> None:
    for metric in metrics_in(text):
        assert metric.name


@pytest.mark.parametrize("body", ["[]", "{}", '{"metrics": 3}', '{"metrics": {"a": []}}', "nan"])
def test_a_broken_line_of_the_kit_gives_nothing(body: str) -> None:
    assert metrics_in(f"{KIT_MARK}starling {body}") == ()
