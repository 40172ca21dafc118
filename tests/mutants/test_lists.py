"""The lists still fit the code; what a mutant does to it is shown by a small one."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, MutantError, read_lists
from tests.mutants.planting import ROOT, Fate, check_unplanted, try_mutant


def problem(mutant: Mutant) -> str | None:
    """Why it does not apply to the code as it is; None where it does."""
    try:
        mutant.plant((ROOT / mutant.path).read_text(encoding="utf-8"))
    except (MutantError, FileNotFoundError) as error:
        return str(error)
    return None


def test_every_mutant_applies_and_names_tests_that_are_there() -> None:
    """Who changes a line that a mutant replaces changes the mutant, or takes it out."""
    mutants = read_lists()
    assert [said for mutant in mutants if (said := problem(mutant)) is not None] == []
    for mutant in mutants:
        files = [each.partition("::")[0] for each in mutant.tests if each.startswith("tests/")]
        assert files, mutant.place
        for file in files:
            assert (ROOT / file).exists(), f"{mutant.place}: {file}"
    changes = [(mutant.path, mutant.old, mutant.new) for mutant in mutants]
    assert len(set(changes)) == len(changes)


def test_few_are_expected_to_survive() -> None:
    mutants = read_lists()
    assert sum(bool(mutant.survives) for mutant in mutants) <= len(mutants) / 10


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with a function, and a test of it that sees one of two bugs."""
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_adding.py").write_text(
        "from adding import add\n\ndef test_add():\n    assert add(0, 2) == 2\n"
    )
    return tmp_path


def listed(tree: Path, *lines: str) -> list[Mutant]:
    (tree / "adding.txt").write_text("# a remark\n" + "\n".join(lines) + "\n")
    return read_lists(tree)


@pytest.mark.parametrize(("new", "fate"), [("b - a", Fate.SURVIVED), ("a - b", Fate.CAUGHT)])
def test_a_mutant_is_caught_or_survives_and_is_taken_out_again(
    tree: Path, new: str, fate: Fate
) -> None:
    before = (tree / "adding.py").read_text()
    (mutant,) = listed(tree, "adding.py: test_adding.py", "- a + b", f"+ {new}", "? it is so")
    assert (mutant.place, mutant.survives) == ("adding:2", "it is so")
    check_unplanted(tree, [mutant], 60)
    assert try_mutant(tree, mutant, 60).fate is fate
    assert (tree / "adding.py").read_text() == before


def test_tests_that_do_not_end_are_ended(tree: Path) -> None:
    (tree / "test_adding.py").write_text("import time\n\ndef test():\n    time.sleep(3600)\n")
    (mutant,) = listed(tree, "adding.py: test_adding.py", "- a + b", "+ b")
    assert try_mutant(tree, mutant, 0.5).fate is Fate.HUNG


def test_tests_that_fail_with_nothing_planted_are_an_error(tree: Path) -> None:
    (mutant,) = listed(tree, "adding.py: test_adding.py", "- a + b", "+ b")
    (tree / "adding.py").write_text("def add(a, b):\n    return 7\n")
    with pytest.raises(MutantError, match="with nothing planted"):
        check_unplanted(tree, [mutant], 60)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("- a * b", "+ b"), "found 0 times"),
        (("- a", "+ b"), "found 3 times"),
        (("-     return a + b",), "no Python is left"),
        (("- a + b", "+ a + b"), "another new text"),
        (("- a + b", "a - b"), "not a line of a mutant"),
    ],
)
def test_what_is_no_mutant(tree: Path, lines: tuple[str, ...], message: str) -> None:
    text = (tree / "adding.py").read_text()
    with pytest.raises(MutantError, match=message):
        [each.plant(text) for each in listed(tree, "adding.py: test_adding.py", *lines)]
