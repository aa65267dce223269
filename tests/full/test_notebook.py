"""What a notebook shows, run in a real kernel."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CELLS = [
    """
from mixer import MixingTrainer
from tests.helpers import Tokens, build_model
from transformers import TrainingArguments
sets = {"math": Tokens(40, 1), "code": Tokens(24, 2)}
model, weights = build_model("llama"), {"math": 3, "code": 1}
options = {"max_steps": 60, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 20, "save_strategy": "no"}
args = TrainingArguments("run", per_device_train_batch_size=4, report_to="none", use_cpu=True, **options)
trainer = MixingTrainer(model, args, train_dataset=sets, eval_dataset=sets, mixing=weights)
""",
    "trainer.train();",
    "trainer.evaluate(); trainer.evaluate(sets, metric_key_prefix='again');",
    "trainer.predict(sets);",
]


@pytest.mark.full
def test_a_notebook_shows_bars_and_tables_in_one_output_each(tmp_path, monkeypatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel", reason="a kernel needs the package `ipykernel`")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [[output.data["text/html"] for output in cell.outputs if "data" in output] for cell in notebook.cells]
    assert [len(outputs) for outputs in shown] == [0, 1, 2, 1]

    (trained,) = shown[1]
    assert "100% 60/60 steps" in trained
    table = [line.split() for line in trained.partition("<pre>")[2].partition("</pre>")[0].splitlines()]
    assert [(name, share, samples) for name, share, _, samples, _ in table[1:]] == [
        ("math", "75%", "180"),
        ("code", "25%", "60"),
    ]
    columns = re.findall(r"<th>(.*?)</th>", trained)
    assert columns == ["Step", "Training Loss", "Validation Loss", "Math Loss", "Code Loss", "Worst Loss"]
    assert [rows.count("<td>") for rows in re.findall(r"<tr>(.*?)</tr>", trained, re.DOTALL)] == [len(columns)] * 3
    for evaluated in shown[2]:
        assert {"Validation Loss", "Math Loss", "Code Loss"} <= set(re.findall(r"<th>(.*?)</th>", evaluated))
        assert "<progress" not in evaluated
