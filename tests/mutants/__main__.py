"""`python -m tests.mutants`: plants the bugs of the lists and says which of them no test notices.

Exit code 1: some survived that are not expected to. Names narrow down what is planted: a list's
(`coordinator`), one place in it (`coordinator:12`), or the beginning of a file's path.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant, MutantError, read_lists
from tests.mutants.planting import Fate, Result, check_unplanted, copy_tree, try_all


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="lists, places or files; all when there are none")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a mutant's tests")
    parser.add_argument("--no-check", action="store_true", help="not first with nothing planted")
    options = parser.parse_args(arguments)
    try:
        mutants = [each for each in read_lists() if _is_named(each, options.names)]
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            return _run(Path(folder), mutants, options)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2


def _is_named(mutant: Mutant, names: Sequence[str]) -> bool:
    room = mutant.place.partition(":")[0]
    return not names or any(
        name in (room, mutant.place) or mutant.path.startswith(name) for name in names
    )


def _run(folder: Path, mutants: Sequence[Mutant], options: argparse.Namespace) -> int:
    trees = [folder / str(number) for number in range(max(1, options.jobs))]
    for tree in trees:
        copy_tree(tree)
    for mutant in mutants:  # all that is wrong with the lists, before anything takes long
        mutant.plant((trees[0] / mutant.path).read_text(encoding="utf-8"))
    if not options.no_check:
        print("with nothing planted: ", end="", flush=True)
        check_unplanted(trees[0], mutants, options.timeout)
        print("all tests pass")
    began_s = time.monotonic()
    results = []
    for result in try_all(trees, mutants, options.timeout):
        results.append(result)
        _print(result, len(results), len(mutants))
    return _report(results, time.monotonic() - began_s)


def _print(result: Result, count: int, total: int) -> None:
    mutant = result.mutant
    head = f"[{count}/{total}] {result.fate.value} {mutant.place} {result.seconds:.1f} s"
    print(f"{head}  {mutant.path}", flush=True)
    if result.fate is not Fate.SURVIVED:
        if mutant.survives:
            print(f"    was expected to survive: {mutant.survives}")
        return
    for sign, text in (("-", mutant.old), ("+", mutant.new)):
        for line in text.splitlines():
            print(f"    {sign} {line}")
    print(f"    {mutant.survives or 'NOT EXPLAINED; tried: ' + ' '.join(mutant.tests)}", flush=True)


def _report(results: Sequence[Result], seconds: float) -> int:
    survivors = [each.mutant for each in results if each.fate is Fate.SURVIVED]
    unexplained = [mutant for mutant in survivors if not mutant.survives]
    hung = sum(each.fate is Fate.HUNG for each in results)
    print(
        f"{len(results)} planted in {seconds:.0f} s: {len(results) - len(survivors)} caught "
        f"({hung} by hanging), {len(survivors)} survived, {len(unexplained)} of them unexplained"
    )
    for mutant in unexplained:
        print(f"  {mutant.place} {mutant.path}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
