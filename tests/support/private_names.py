"""Counts how often tests use private names of the product.

A test that uses a private name breaks when that name changes, although nothing that users rely on has broken.
`tests/data/private_names.txt` has the number of private names that each file still uses, and
`python -m tests.support.private_names` writes this list.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "data" / "private_names.txt"
PRODUCT = ("broker_service", "proto/rocketsim_proto", "rocketsim_cli", "rocketsim_client", "rocketsim_console")
PRODUCT += ("rocketsim_source", "rocketsim_testing")
PATCHES = ("setattr", "delattr", "setitem", "object")  # functions of monkeypatch and mock.patch that take names as text
OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields")  # public methods of named tuples, in spite of the underscore


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_", *OF_NAMED_TUPLES)


def defined(tree: ast.AST) -> Iterator[str]:
    """Yields the private names that the code defines: functions, classes, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if is_private(node.id):
                yield node.id
    yield from members(tree)


def members(tree: ast.AST) -> Iterator[str]:
    """Yields the private names of functions, of classes, and of the attributes that objects give themselves.

    An attribute that a test gives to another object is no definition, because it replaces an attribute of the product.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            name = node.attr
        else:
            continue
        if is_private(name):
            yield name


def is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def used(tree: ast.AST) -> Iterator[str]:
    """Yields the private names of other objects that the code uses, as attributes, imports, or texts of a patch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_own(node):
                yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES:
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    if is_private(name := given.value.rpartition(".")[2]):
                        yield name


def counts() -> dict[str, int]:
    """Returns how often each test file uses private names of the product."""
    of_product = {name for tree in parsed(PRODUCT) for name in defined(tree[1])}
    found = {}
    for path, tree in parsed(("tests",)):
        foreign = of_product - set(members(tree))
        if count := Counter(name in foreign for name in used(tree))[True]:
            found[path.relative_to(ROOT).as_posix()] = count
    return found


def parsed(folders: Iterable[str]) -> Iterator[tuple[Path, ast.AST]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def allowed() -> dict[str, int]:
    lines = (line.rsplit(" ", 1) for line in LIST.read_text().splitlines())
    return {path: int(count) for path, count in lines}


def write() -> None:
    LIST.write_text("".join(f"{path} {count}\n" for path, count in sorted(counts().items())))


if __name__ == "__main__":
    before = sum(allowed().values()) if LIST.exists() else sys.maxsize
    write()
    after = sum(allowed().values())
    print(f"{after} uses of private names in {len(allowed())} files")
    if after > before:
        sys.exit("That is more than before: use a public name, or give the type that owns the behaviour one.")
