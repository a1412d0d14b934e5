"""Tests use fewer and fewer private names of the product."""

import ast

from tests.support import private_names


def test_no_test_uses_more_private_names_than_it_did() -> None:
    found, allowed = private_names.counts(), private_names.allowed()
    more = [f"{path}: {count}, and {allowed.get(path, 0)} before" for path, count in found.items()]
    more = [line for line, path in zip(more, found, strict=True) if found[path] > allowed.get(path, 0)]
    assert not more, "uses of private names in tests: use public ones\n" + "\n".join(more)
    assert found == allowed, "fewer uses of private names: run `python -m tests.support.private_names`, and commit it"


def test_uses_are_attributes_imports_and_texts_of_patches() -> None:
    code = "from a import _b\nx._c.d\nself._e\nmonkeypatch.setattr(f, '_g', 1)\npatch.object(h, 'i')\nj.__k__\n"
    assert sorted(private_names.used(ast.parse(code))) == ["_b", "_c", "_g"]


def test_an_attribute_that_a_test_gives_to_another_object_is_no_name_of_its_own() -> None:
    code = "class A:\n  def __init__(self):\n    self._a = 1\n  def _b(self): ...\nnode._c = 1\n_d = node._d\n"
    assert sorted(private_names.members(ast.parse(code))) == ["_a", "_b"]
    assert sorted(private_names.used(ast.parse(code))) == ["_c", "_d"]
