"""`up` and the demo serve a console for their own cluster, unless the console's packages are not installed."""

import sys

import pytest

from rocketsim_cli.console import announcement, console_for


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_no_console_is_served_and_the_announcement_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with console_for("127.0.0.1:1") as url:
        assert url is None
        assert announcement(url) == "no console: its packages are not installed (pip install 'rocketsim[console]')"
