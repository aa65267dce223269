from pathlib import Path
from typing import Any

import pytest

from mixer import GroupDRO, MixingTrainer
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.trainer.test_one_pass import Lomo
from tests.ranks.launch import message_of
from tests.ranks.warm import on_ranks


def errors(folder: Path) -> dict[str, str]:
    def trained(kind: type = MixingTrainer, mixing: Any = None, **options: Any) -> str:
        args = arguments(folder, per_device_train_batch_size=4, **options)
        return message_of(kind(build_model("llama"), args, None, three_streams(), batch_size=8, mixing=mixing).train)

    return {
        "static": trained(mixing=GroupDRO(), ddp_static_graph=True),
        "lomo": trained(Lomo, GroupDRO(), optim="lomo"),
        "one micro-batch": trained(ddp_static_graph=True),
    }


@pytest.mark.full
def test_a_step_in_parts_is_refused_on_all_ranks(tmp_path: Path) -> None:
    for result in on_ranks(tmp_path, errors):
        found = result["errors"]
        assert "Step 1, the first of this run, has 3 micro-batches, but ddp_static_graph=True" in found["static"]
        assert "Step 1 has 3 micro-batches, and optim='lomo' would update the weights once" in found["lomo"]
        assert found["one micro-batch"] == "no error"
