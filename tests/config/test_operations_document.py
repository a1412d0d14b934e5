"""docs/operations.md has every key as it is."""

from tests.support.configuration_table import DOCUMENT, with_tables


def test_the_tables_of_keys_are_those_of_the_code():
    document = DOCUMENT.read_text()
    assert document == with_tables(document), "run: python -m tests.support.configuration_table"
