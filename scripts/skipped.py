"""Lists the tests that were skipped, and fails where one of them had no right to be.

    skipped.py JUNIT_XML ALLOWED [--without-torch]

As root, which is what CI is, every test must run but those named in ALLOWED: a test id a line, `#` begins a comment.
An ordinary user may lack what some tests need. Nobody may expect a test to fail (xfail). `--without-torch`: tests that
were skipped because torch is not installed are counted, and are all right.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NO_TORCH = "could not import 'torch'"


class Skip(NamedTuple):
    """One test that did not run, or was expected to fail."""

    test: str  # its id, without parameters
    reason: str
    is_xfail: bool


def skips(report: Path) -> Iterator[Skip]:
    """Read from pytest's report of the family `xunit1`, the one that names files."""
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            continue
        file, scope = case.get("file", ""), case.get("classname", "")
        reason, text = skipped.get("message", ""), skipped.text or ""
        if not scope:  # a whole module, skipped while it was imported
            yield Skip(file, text.partition("Skipped: ")[2][:-2], is_xfail=False)
            continue
        module = file.removesuffix(".py").replace("/", ".")
        classes = scope.removeprefix(module).split(".")[1:]
        test = "::".join([file, *classes, case.get("name", "").partition("[")[0]])
        yield Skip(test, reason, skipped.get("type") == "pytest.xfail")


def main() -> int:
    """Returns 1 where a skip is not allowed."""
    report, allowed_file, *options = sys.argv[1:]
    lines = Path(allowed_file).read_text().splitlines() if Path(allowed_file).exists() else []
    allowed = {line.partition("#")[0].strip() for line in lines}
    found = sorted(set(skips(Path(report))))
    without_torch = [skip for skip in found if NO_TORCH in skip.reason and "--without-torch" in options]
    shown = [skip for skip in found if skip not in without_torch]
    wrong = [skip for skip in shown if skip.is_xfail or (os.geteuid() == 0 and skip.test not in allowed)]

    print(f"{len(shown)} skipped" + (f", and {len(without_torch)} that need torch" if without_torch else ""))
    for skip in shown:
        mark = "NOT ALLOWED" if skip in wrong else "allowed"
        print(f"  {mark}: {skip.test}: {'expected to fail: ' if skip.is_xfail else ''}{skip.reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
