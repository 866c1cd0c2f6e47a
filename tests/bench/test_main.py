from __future__ import annotations

import builtins
import tomllib
from pathlib import Path

import pytest

from bench import __main__ as entry


def test_ctrl_c_during_imports_is_one_line(monkeypatch, capsys):
    real = builtins.__import__

    def interrupted(name, *args, **kwargs):
        if name == "bench.cli":
            raise KeyboardInterrupt
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as e:
        entry.main()
    assert e.value.code == 2
    assert capsys.readouterr().err == "error: interrupted before the first row\n"


def test_the_installed_command_is_this_one():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"cake-bench": "bench.__main__:main"}


def test_the_command_line_runs(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cake-bench", "gate", "--help"])
    with pytest.raises(SystemExit) as e:
        entry.main()
    assert e.value.code == 0 and "--previous" in capsys.readouterr().out
