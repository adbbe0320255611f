"""A server in a space file: what it becomes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.apps.resolve import resolve
from autotune.core.errors import UsageError
from autotune.core.records import WorkloadSpec
from autotune.space.loader import load_space
from autotune.workloads.payloads import payloads

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_server" / "server.yaml"
SHELL = "workload.server.command=[env, '{port}', '{workers}', '{batch_size}', '{delay_ms}']"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("workload.server.url=http://u:secret@h:80", "has more than host and port"),
        ("workload.server.url=https://h", "is not http://host:port"),
        ("workload.server.url=http://h:99999", "is not http://host:port"),
        ("workload.server.request.path=infer", "'infer' is no path"),
        ("workload.server.request={file: absent}", "server.request.file: no file"),
        ("workload.server.request.file=server.py", "body and file exclude each other"),
        ("workload.server.request.body='{nosuch}'", "unknown placeholder {nosuch}"),
        ("workload.server.request.timeout=5", "has no unit"),
        ("workload.server.request.headers={'a b': c}", "'a b' is no name of a header"),
        ("workload.server.request={openai: {model: m}}", "output_tokens: is missing"),
        ("workload.server.request={openai: {model: m, output_tokens: 5}}", "prompt_tokens or prom"),
        ("workload.metrics={throughput: x}", "metrics belongs to command, not to server"),
        ("params.streams=[1, 2]", "unknown parameter 'streams'"),
        ("limits={ttft_p99: 5}", "has no unit"),
    ],
)
def test_a_server_that_is_not_well_described_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_space(EXAMPLE, [line])
    assert message in str(refused.value)


def test_a_server_needs_a_load_and_has_all_its_placeholders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    with pytest.raises(UsageError, match="has to be told how requests come"):
        resolve(load_space(EXAMPLE, ["load={closed: {}}", SHELL]))
    words = [SHELL.replace("'{batch_size}'", "1")]
    with pytest.raises(UsageError, match=r"batch_size is searched, but .* no \{batch_size\}"):
        resolve(load_space(EXAMPLE, words))
    with pytest.raises(UsageError, match="ttft_p99 is of streamed answers"):
        resolve(load_space("offline", ["limits={ttft_p99: 5ms}", "workload={model: mlp}"]))


@pytest.mark.parametrize("name", ["vllm", "triton_server"])
def test_the_shipped_servers_are_well_described(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests.jsonl").write_text("{}\n")
    space = load_space(name)
    assert space.workload.kind == "server"
    assert space.objective.load.is_queued
    assert len(space.searched) > 1


def test_prompts_are_drawn_as_long_as_asked_and_the_same_for_a_seed() -> None:
    spec: WorkloadSpec = load_space("vllm").workload
    request = spec.options["request"]
    assert isinstance(request, dict)
    first, again, other = (payloads(request, {}, seed) for seed in (1, 1, 2))
    assert first(7) == again(7) != other(7)
    lengths = {len(first(n)) for n in range(50)}
    assert len(lengths) > 10
    assert first(3) == first(1003)
