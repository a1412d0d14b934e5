"""Runs blocks of `rocketsim` commands from the documents."""

import shlex

import pytest

from rocketsim_cli.main import main


class CommandLine:
    """Runs `rocketsim` in this process, because a new process takes most of a second."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
        self._capsys, self._monkeypatch, self._changed = capsys, monkeypatch, changed

    def run(self, text: str) -> str:
        """Runs each command of a block, and returns what all of them print."""
        for written, other in self._changed.items():
            text = text.replace(written, other)
        self._capsys.readouterr()
        for line in text.replace(";", "\n").splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "export":
                for name, value in (word.split("=", 1) for word in words[1:]):
                    self._monkeypatch.setenv(name, value)
                continue
            assert words[0] == "rocketsim"
            with pytest.raises(SystemExit) as ended:
                main(words[1:])
            assert not ended.value.code, (line, self._capsys.readouterr().err)
        return self._capsys.readouterr().out
