import pytest

pytest.importorskip("trl", reason="the extra `trl` is not installed: it needs newer libraries than the lowest that are tested")
