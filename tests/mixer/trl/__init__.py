import pytest

pytest.importorskip("trl", reason="the extra `trl` is not installed")
