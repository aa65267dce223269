from collections.abc import Callable

import pytest


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command; gives what it prints."""

    def of(*command: object) -> str:
        from mixer.tools.cli.entry import main

        capsys.readouterr()
        main([str(word) for word in command])
        return capsys.readouterr().out

    return of


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that has to end with status 2; gives what it says, in one line."""

    def of(*command: object) -> str:
        from mixer.tools.cli.entry import main

        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return of
