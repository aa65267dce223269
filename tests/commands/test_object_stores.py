"""Recipes whose data lie in an object store: an S3 server on loopback, which checks keys."""

import io
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pandas as pd
import pytest
import yaml

from mixer.tools.recipe.data import DataSource
from tests.commands.recipes import NO_EVALUATION, SAVING, write_recipe

pytest.importorskip("s3fs", reason="data in an object store need s3fs")
moto = pytest.importorskip("moto.server", reason="the S3 server of the tests is moto's: pip install 'moto[server]'")

WRONG = "a-wrong-secret-key"


class Store(NamedTuple):
    """A server with two buckets, `one` and `two`, and for each the options of the one user who may read it."""

    one: dict[str, Any]
    two: dict[str, Any]
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    place = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    s3, iam = (boto3.client(kind, aws_access_key_id="a", aws_secret_access_key="b", **place) for kind in ("s3", "iam"))
    rows = [{"input_ids": [number + 1, *range(2, 9)], "labels": list(range(1, 9))} for number in range(20)]
    options = {}
    for bucket in ("the-one", "the-two"):
        s3.create_bucket(Bucket=bucket)
        resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
        policy = {"Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": resources}], "Version": "2012-10-17"}
        iam.create_user(UserName=bucket)
        iam.put_user_policy(UserName=bucket, PolicyName="own", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=bucket)["AccessKey"]
        options[bucket] = {"key": key["AccessKeyId"], "secret": key["SecretAccessKey"], "client_kwargs": place}
        for shard, own in enumerate((rows[:12], rows[12:])):
            lines = "".join(f"{json.dumps(row)}\n" for row in own)
            s3.put_object(Bucket=bucket, Key=f"text/rows-{shard}.jsonl", Body=lines.encode())
            pd.DataFrame(own).to_parquet(table := io.BytesIO())
            s3.put_object(Bucket=bucket, Key=f"table/rows-{shard}.parquet", Body=table.getvalue())
    url, plain = f"{place['endpoint_url']}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    asked = urllib.request.Request(url, data=b"0", headers=plain)  # noqa: S310  # of this test's own server
    urllib.request.urlopen(asked).close()  # noqa: S310  # from here on it checks keys
    yield Store(*options.values(), rows)
    server.stop()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def recipe(folder: Path, **data: Any) -> str:
    folder.mkdir(exist_ok=True)
    training = {"max_steps": 4, **NO_EVALUATION, "logging_steps": 1}
    return write_recipe(folder, training, streams={"web": {"data": data}}, mixing=None, batch_size=3)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_is_that_on_files_and_writes_no_credentials(streaming, store, tmp_path, printed, caplog) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for shard, own in enumerate((store.rows[:12], store.rows[12:])):
        (files / f"rows-{shard}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))
    here = recipe(tmp_path / "here", path=str(files / "*.jsonl"), streaming=streaming)
    there = recipe(tmp_path / "there", path="s3://the-one/text/*.jsonl", streaming=streaming, storage_options=store.one)
    run = tmp_path / "there" / "run"
    said = printed("train", here) + printed("train", there, *SAVING, "2")
    weights = (run / "model.safetensors").read_bytes()
    assert weights == (tmp_path / "here" / "run" / "model.safetensors").read_bytes()
    said += printed("train", there, *SAVING, "2", "--resume", run / "checkpoint-2")
    assert weights == (run / "model.safetensors").read_bytes()
    written = [path for root in (run, tmp_path / "cache") for path in root.rglob("*") if path.is_file()]
    texts = [said.encode(), caplog.text.encode(), *(path.read_bytes() for path in written)]
    for secret in (store.one["key"], store.one["secret"]):
        assert not [text for text in texts if secret.encode() in text]
    copy = yaml.safe_load((run / "recipe.yaml").read_text())["streams"]["web"]["data"]["storage_options"]
    assert copy == {"key": "***", "secret": "***", "client_kwargs": {"endpoint_url": "***", "region_name": "***"}}


def test_errors_name_stream_path_and_the_keys_of_options_alone(store, tmp_path, refused, printed, capsys) -> None:
    path = "s3://the-one/text/rows-*.jsonl"
    said = refused("train", recipe(tmp_path, path=path, storage_options={**store.one, "secret": WRONG}))
    assert "streams.web.data" in said
    assert path in said
    assert "key, secret, client_kwargs.endpoint_url" in said
    wrong_field = refused("train", recipe(tmp_path, path=path, storage_options=store.one, spilt="train"))
    wrong_type = refused("train", recipe(tmp_path, path=[3], storage_options=store.one))
    own = recipe(tmp_path, path=path, storage_options=store.one)
    option = refused("train", own, "--streams.web.data.storage_options.secret", WRONG)
    Path(own).write_text(Path(own).read_text() + "\n  {")
    broken = refused("train", own)
    signed = refused("train", recipe(tmp_path, path=f"https://host/rows.jsonl?key={WRONG}"))
    with pytest.raises(SystemExit):
        printed("train", recipe(tmp_path, path=path, storage_options=store.one), "--print_config")
    shown = capsys.readouterr().out
    assert "secret: '***'" in shown
    for text in (said, wrong_field, wrong_type, option, broken, signed, shown):
        for secret in (WRONG, store.one["key"], store.one["secret"]):
            assert secret not in text


def test_the_copy_of_a_recipe_wants_its_credentials_anew(store, tmp_path, refused, printed) -> None:
    hidden = dict.fromkeys(store.one, "***")
    copy = recipe(tmp_path, path="s3://the-one/text", storage_options=hidden)
    assert "storage_options (key, secret, client_kwargs)" in refused("inspect", copy)
    assert "web" in printed("inspect", copy, "--streams.web.data.storage_options", json.dumps(store.one))


def test_streams_of_two_accounts_are_each_read_with_their_own(store: Store) -> None:
    sources = [
        DataSource(f"s3://the-{name}/table/*.parquet", streaming=True, storage_options=options)
        for name, options in (("one", store.one), ("two", store.two))
    ]
    first, second = (iter(source.load(name)[0]) for source, name in zip(sources, ("one", "two"), strict=True))
    assert [row for pair in zip(first, second, strict=True) for row in pair] == [
        row for row in store.rows for _ in range(2)
    ]
