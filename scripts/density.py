"""How dense and how large the house is: a stranger should be able to read each function once, and all of it some day.

    .venv/bin/python scripts/density.py           a table by package; exit code 1 above one of the limits
    .venv/bin/python scripts/density.py --list    also every function above a limit, the densest first

Three figures say where code has to be decoded instead of read:

* **syntax nodes a code line**: how much happens on a line. Libraries that are read with pleasure have 6 to 8;
* **dense functions**: those of some length that have far more than that. One of a line or two may be dense;
* **bare participles**: functions named ``seen`` or ``counted`` do not say what they do, and with what.

The limits below only ever go down. Lines are free: a step of its own, with a name for its result, lowers the first two.

Three more say how large it is: syntax nodes of the product (no line break changes them), lines of tests, words of docs.
A feature takes the place of something. One that cannot raises a limit, in a commit that says what users get for it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).absolute().parent.parent
PRODUCT: Final = ("trinitylake_core", "pipelines", "dagster_project")
GENERATED: Final = "_pb2.py"

MAX_NODES_A_LINE: Final = 8.92
"""Of the whole product."""
MAX_DENSE_FUNCTIONS: Final = 0
MAX_PARTICIPLES: Final = 1
MAX_NODES: Final = 467_006
"""Of the whole product. 0.1.0 had 429,000."""
MAX_TEST_LINES: Final = 78_710
MAX_WORDS: Final = 54_845
"""Of README.md and of all pages in docs/."""

DENSE_NODES_A_LINE: Final = 16
"""Above this a function of :data:`DENSE_FROM_LINES` code lines is dense."""
DENSE_FROM_LINES: Final = 8

PARTICIPLE: Final = re.compile(r"_?[a-z]+(ed|en|nt|wn|ought|aid|ept|eft|ost|ade|old|ut)")
"""What participles end in. A name of several words has a verb and its object."""
_OTHER_WORDS = (
    "amount checkout children client content cost count current cut document embed endpoint environment event extent "
    "feed fold hint hold host "
    "input int layout left lent list listen mount most need often old open output parent point post print "
    "put seed shed silent shorten shutdown speed text then threshold timeout token upgrade used when widen"
)
OTHER_WORDS: Final = frozenset(_OTHER_WORDS.split())
"""Words with such an ending that are no participles."""

FUNCTION_NODES: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Measures:
    """What one file or one package amounts to.

    Attributes:
        lines: lines with code: neither empty, nor comments, nor docstrings.
        nodes: syntax nodes, as Python's own parser makes them.
        functions: functions and methods, also those inside of others.
        dense: nodes a line and place of each dense function.
        participles: the place of each function that is named by a bare participle.
    """

    lines: int = 0
    nodes: int = 0
    functions: int = 0
    dense: list[tuple[float, str]] = field(default_factory=list)
    participles: list[str] = field(default_factory=list)

    def add(self, other: Measures) -> None:
        """Add what another file amounts to."""
        self.lines += other.lines
        self.nodes += other.nodes
        self.functions += other.functions
        self.dense += other.dense
        self.participles += other.participles

    @property
    def nodes_a_line(self) -> float:
        """Syntax nodes a code line."""
        return self.nodes / max(1, self.lines)


@dataclass(frozen=True)
class Size:
    """How much there is of something, and how much there may be."""

    what: str
    amount: int
    limit: int


def main(arguments: list[str]) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name every function above a limit, the densest first")
    options = parser.parse_args(arguments)
    packages = measure_packages(product_files())
    total = Measures()
    for measures in packages.values():
        total.add(measures)
    print_table(packages, total)
    if options.list:
        print_functions(total)
    sizes = measure_sizes(total)
    for size in sizes:
        print(f"{size.amount:,} {size.what}, at most {size.limit:,}")
    exceeded = [*exceeded_limits(total), *exceeded_sizes(sizes)]
    for sentence in exceeded:
        print(sentence, file=sys.stderr)
    return 1 if exceeded else 0


def product_files() -> Iterator[Path]:
    """Yield the files of the product that people wrote."""
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.endswith(GENERATED):
                yield path


def measure_packages(paths: Iterable[Path]) -> dict[str, Measures]:
    """Measure files, and add them up by the package that they lie in."""
    packages: dict[str, Measures] = {}
    for path in paths:
        relative = path.relative_to(ROOT)
        package = ".".join(relative.parent.parts)
        packages.setdefault(package, Measures()).add(measure_file(path.read_text(), str(relative)))
    return packages


def measure_file(source: str, name: str) -> Measures:
    """Measure the source text of one file."""
    tree = ast.parse(source)
    code = code_lines(source, tree)
    measures = Measures(lines=len(code), nodes=count_nodes(tree))
    for node in ast.walk(tree):
        if isinstance(node, FUNCTION_NODES):
            measures.functions += 1
            place = f"{name}:{node.lineno} {node.name}"
            own_lines = sum(1 for number in range(node.lineno, node.end_lineno + 1) if number in code)
            nodes_a_line = count_nodes(node) / max(1, own_lines)
            if own_lines >= DENSE_FROM_LINES and nodes_a_line > DENSE_NODES_A_LINE:
                measures.dense.append((nodes_a_line, place))
            if is_bare_participle(node.name):
                measures.participles.append(place)
    return measures


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    text = set()
    for node in ast.walk(tree):
        text.update(docstring_lines(node))
    code = set()
    for number, line in enumerate(source.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and number not in text:
            code.add(number)
    return code


def docstring_lines(node: ast.AST) -> range:
    """Return the lines of the docstring of a module, class or function; none for all other nodes."""
    if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION_NODES)):
        return range(0)
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    first = node.body[0]
    return range(first.lineno, first.end_lineno + 1)


def count_nodes(tree: ast.AST) -> int:
    """Count the syntax nodes of a tree."""
    return sum(1 for _ in ast.walk(tree))


def is_bare_participle(name: str) -> bool:
    """Whether a name is one participle, such as ``seen``, and not a verb with its object, such as ``report_seen``."""
    word = name.strip("_")
    return "_" not in word and word not in OTHER_WORDS and PARTICIPLE.fullmatch(name) is not None


def print_table(packages: dict[str, Measures], total: Measures) -> None:
    """Print a row for each package, and the product last."""
    width = max(map(len, packages))
    print(f"{'package':{width}}   lines  nodes/line  dense  participles")
    for name, measures in [*packages.items(), ("all", total)]:
        print(
            f"{name:{width}}  {measures.lines:6,}  {measures.nodes_a_line:10.2f}"
            f"  {len(measures.dense):5}  {len(measures.participles):11}"
        )


def print_functions(total: Measures) -> None:
    """Print the places of dense functions, and of bare participles."""
    print("\ndense functions, with their nodes a line:")
    for nodes_a_line, place in sorted(total.dense, reverse=True):
        print(f"{nodes_a_line:5.1f}  {place}")
    print("\nfunctions named by a bare participle:")
    for place in total.participles:
        print(f"       {place}")


def exceeded_limits(total: Measures) -> Iterator[str]:
    """Yield a sentence for each limit that the product is above."""
    advice = "`scripts/density.py --list` names the places"
    if total.nodes_a_line > MAX_NODES_A_LINE:
        yield f"{total.nodes_a_line:.2f} syntax nodes a code line are more than {MAX_NODES_A_LINE}: {advice}"
    if len(total.dense) > MAX_DENSE_FUNCTIONS:
        yield f"{len(total.dense)} dense functions are more than {MAX_DENSE_FUNCTIONS}: {advice}"
    if len(total.participles) > MAX_PARTICIPLES:
        yield f"{len(total.participles)} bare participles are more than {MAX_PARTICIPLES}: {advice}"


def measure_sizes(total: Measures) -> list[Size]:
    """Return the sizes of the product, of the tests and of the pages."""
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = sum(len(page.read_text().split()) for page in pages)
    return [
        Size("syntax nodes of the product", total.nodes, MAX_NODES),
        Size("lines of tests", tests, MAX_TEST_LINES),
        Size("words of pages", words, MAX_WORDS),
    ]


def exceeded_sizes(sizes: Iterable[Size]) -> Iterator[str]:
    """Yield a sentence for each size that is above its limit."""
    for size in sizes:
        if size.amount > size.limit:
            yield f"{size.amount:,} {size.what} are more than {size.limit:,}: what can go for what has come?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
