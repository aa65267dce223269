"""`mixer simulate` as a user runs it: on the demo's recipe, made small."""

import json

from tests.commands.recipes import FACTORY, RECIPE, ROOT, Runs

DATA = json.dumps({"num_samples": 60, "num_validation_samples": 4, "block_length": 16})
SMALL = [str(ROOT / "recipes" / "demo.yaml"), "--model.config", json.dumps(RECIPE["model"]["config"])]
SMALL += ["--mixing", json.dumps(RECIPE["mixing"]), "--batch_size", "9", "--training.max_steps", "12"]
SMALL += ["--training.eval_steps", "4", "--training.warmup_steps", "3"]
for name in ("python", "cpp", "english", "manual", "junk"):
    SMALL += [f"--streams.{name}.factory", FACTORY, f"--streams.{name}.arguments", DATA]


def test_what_is_printed_before_a_run(printed: Runs, refused: Runs) -> None:
    text = printed("simulate", *SMALL, "--mixing", "Uniform", "--every", "0.5")
    for said in ("Streams", "Realised mixture", "108", "The plans need no losses"):
        assert said in text
    content = json.loads(printed("simulate", *SMALL, "--json"))
    assert [content[name] for name in ("steps", "samples", "tokens")] == [12, 108, 108 * 16]
    assert sum(stream["samples"] for stream in content["streams"]) == 108
    assert content["source"].startswith("Held at its start")
    assert len(content["mixture"]) == 10
    assert content["batch_size"] == {"first": 9, "last": 9, "least": 9, "greatest": 9}
    assert "every must be a share" in refused("simulate", *SMALL, "--mixing", "Uniform", "--every", "0")
