"""What programs print, in the formats that are known, and what must not be taken for a figure."""

from __future__ import annotations

import pytest

from autotune.core.errors import OutOfMemory, TrialCrashed, TrialKilled, WrongOutput
from autotune.workloads.command import ended_badly
from autotune.workloads.command_output import read_figures

AIS_BENCH = """\
[INFO] warm up 10 times
[INFO] -----------------Performance Summary------------------
[INFO] H2D_latency (ms): min = 0.2, max = 0.4, mean = 0.25, median = 0.24, percentile(99%) = 0.39
[INFO] NPU_compute_time (ms): min = 5.0, max = 6.2, mean = 5.5, median = 5.4, percentile(99%) = 6.0
[INFO] D2H_latency (ms): min = 0.05, max = 0.2, mean = 0.10, median = 0.09, percentile(99%) = 0.11
[INFO] throughput 1000*batchsize.mean(16)/NPU_compute_time.mean(5.5): 2909.0909
[INFO] ------------------------------------------------------
"""
MINDSPORE_LITE = """\
ModelPath = model.ms
Running benchmark loops...
Model = model.ms, NumThreads = 2, MinRunTime = 7.125 ms, MaxRuntime = 9.5 ms, AvgRunTime = 8.000 ms
Run Benchmark model.ms Success.
"""
TRTEXEC = """\
[01/02/2030-10:00:00] [I] === Performance summary ===
[01/02/2030-10:00:00] [I] Throughput: 500.25 qps
[01/02/2030-10:00:00] [I] Latency: min = 1.9 ms, max = 4.0 ms, mean = 2.0 ms, median = 1.98 ms, \
percentile(90%) = 2.1 ms, percentile(95%) = 2.3 ms, percentile(99%) = 3.5 ms
[01/02/2030-10:00:00] [I] Enqueue Time: min = 0.1 ms, max = 0.2 ms, mean = 0.1 ms, median = 0.1 ms
[01/02/2030-10:00:00] [I] H2D Latency: min = 0.1 ms, max = 0.3 ms, mean = 0.15 ms, \
median = 0.14 ms, percentile(99%) = 0.25 ms
[01/02/2030-10:00:00] [I] GPU Compute Time: min = 1.7 ms, max = 3.5 ms, mean = 1.8 ms, \
median = 1.75 ms, percentile(99%) = 3.2 ms
&&&& PASSED TensorRT.trtexec
"""
PERF_ANALYZER = """\
*** Measurement Settings ***
  Batch size: 4
Request concurrency: 1
  Client:
    Throughput: 300 infer/sec
    p50 latency: 1000 usec
    p90 latency: 1500 usec
    p99 latency: 2000 usec
Request concurrency: 4
  Client:
    Request count: 4500
    Throughput: 1000.5 infer/sec
    Avg latency: 15900 usec (standard deviation 200 usec)
    p50 latency: 15500 usec
    p90 latency: 17000 usec
    p95 latency: 18000 usec
    p99 latency: 20000 usec
"""
METRICS = {
    "throughput_items_per_s": {"regex": r"throughput=([\d.]+)"},
    "latency_p99_s": {"regex": r"p99: ([\d.]+) us", "unit": "us"},
}


def test_ais_bench() -> None:
    found = read_figures(AIS_BENCH, {"parser": "ais_bench"}, batch_size=16)
    assert found == pytest.approx(
        {
            "h2d_mean_s": 0.25e-3,
            "h2d_p99_s": 0.39e-3,
            "compute_mean_s": 5.5e-3,
            "compute_p99_s": 6.0e-3,
            "d2h_mean_s": 0.1e-3,
            "d2h_p99_s": 0.11e-3,
            "latency_mean_s": 5.85e-3,
            "latency_p99_s": 6.5e-3,
            "throughput_items_per_s": 2909.0909,
        }
    )


def test_ais_bench_without_its_copies_tells_of_computing() -> None:
    lines = [line for line in AIS_BENCH.splitlines() if "_latency" not in line]
    found = read_figures("\n".join(lines), {"parser": "ais_bench"}, batch_size=16)
    assert found == pytest.approx(
        {
            "compute_mean_s": 5.5e-3,
            "compute_p99_s": 6.0e-3,
            "latency_mean_s": 5.5e-3,
            "latency_p99_s": 6.0e-3,
            "throughput_items_per_s": 2909.0909,
        }
    )


def test_mindspore_lite_counts_calls_of_a_batch() -> None:
    found = read_figures(MINDSPORE_LITE, {"parser": "mindspore_lite"}, batch_size=4)
    assert found == pytest.approx({"latency_mean_s": 8e-3, "throughput_items_per_s": 500.0})


def test_trtexec_counts_queries_of_a_batch_and_its_own_latency_line() -> None:
    found = read_figures(TRTEXEC, {"parser": "trtexec"}, batch_size=8)
    assert found == pytest.approx(
        {
            "throughput_items_per_s": 4002.0,
            "latency_mean_s": 2e-3,
            "latency_p50_s": 1.98e-3,
            "latency_p99_s": 3.5e-3,
            "h2d_mean_s": 0.15e-3,
            "compute_mean_s": 1.8e-3,
        }
    )


def test_trtexec_may_explain_its_figures() -> None:
    verbose = TRTEXEC + (
        "[01/02/2030-10:00:00] [V] === Explanations of the performance metrics ===\n"
        "[01/02/2030-10:00:00] [V] Throughput: queries by the Total Host Walltime.\n"
        "[01/02/2030-10:00:00] [V] Latency: the sum of H2D Latency and others.\n"
    )
    wanted = read_figures(TRTEXEC, {"parser": "trtexec"}, batch_size=8)
    assert read_figures(verbose, {"parser": "trtexec"}, batch_size=8) == wanted


def test_perf_analyzer_tells_of_its_last_measurement() -> None:
    found = read_figures(PERF_ANALYZER, {"parser": "perf_analyzer"}, batch_size=4)
    assert found == pytest.approx(
        {
            "throughput_items_per_s": 1000.5,
            "latency_mean_s": 15.9e-3,
            "latency_p50_s": 15.5e-3,
            "latency_p90_s": 17e-3,
            "latency_p99_s": 20e-3,
        }
    )


@pytest.mark.parametrize("parser", ["ais_bench", "mindspore_lite", "trtexec", "perf_analyzer"])
@pytest.mark.parametrize("text", ["", "Segmentation fault", "throughput Latency: AvgRunTime = x"])
def test_another_text_has_no_figures(parser: str, text: str) -> None:
    with pytest.raises(WrongOutput):
        read_figures(text, {"parser": parser}, batch_size=1)


def test_a_decimal_comma_is_never_cut() -> None:
    broken = TRTEXEC.replace("Throughput: 500.25 qps", "Throughput: 500,25 qps")
    with pytest.raises(WrongOutput, match="Throughput"):
        read_figures(broken, {"parser": "trtexec"}, batch_size=1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"throughput": 5, "latency_p99_ms": 3}', {"throughput": 5.0, "p99": 0.003}),
        ('{"throughput_items_per_s": 5, "latency_p99_s": 0.5}', {"throughput": 5.0, "p99": 0.5}),
        ('{"throughput": 5, "latency_p99_us": 20, "note": "x"}', {"throughput": 5.0, "p99": 2e-5}),
        ('{"throughput": "5.5"}', {"throughput": 5.5}),
    ],
)
def test_usual_names_with_their_units(line: str, expected: dict[str, float]) -> None:
    fields = {"throughput": "throughput_items_per_s", "p99": "latency_p99_s"}
    found = read_figures(f"noise\n{line}\nbye", {}, batch_size=1)
    assert found == pytest.approx({fields[name]: value for name, value in expected.items()})


@pytest.mark.parametrize(
    ("key", "factor"), [("p99_us", 1e-6), ("p99 ms", 1.0), ("t_min", 1.0), ("p99_s", 1.0)]
)
def test_a_key_may_end_with_its_unit(key: str, factor: float) -> None:
    metrics = {"latency_p99_s": {"key": key}}
    found = read_figures(f'{{"{key}": 5}}', {"metrics": metrics}, batch_size=1)
    assert found["latency_p99_s"] == pytest.approx(5 * factor)


def test_colours_hide_no_figure() -> None:
    assert read_figures('\x1b[32m{"throughput": 7}\x1b[0m', {}, batch_size=1)
    coloured = TRTEXEC.replace("500.25 qps", "\x1b[1m500.25\x1b[0m qps")
    found = read_figures(coloured, {"parser": "trtexec"}, batch_size=1)
    assert found["throughput_items_per_s"] == 500.25


def test_memory_in_its_units() -> None:
    found = read_figures('{"throughput": 1, "memory_peak_mib": 2}', {}, batch_size=1)
    assert found["memory_peak_bytes"] == 2 * 2**20


def test_the_last_json_line_counts_and_nested_keys_are_reached() -> None:
    text = '{"throughput": 1}\n{"result": {"rate": 7}}\n[1]\n{broken}\n'
    metrics = {"throughput_items_per_s": {"key": "result.rate"}}
    assert read_figures(text, {"metrics": metrics}, batch_size=1) == {"throughput_items_per_s": 7.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found none"),
        ('{"detail": "Not Found"}', "the JSON line has detail"),
        ('{"throughput": "fast"}', "'fast', which is no number"),
        ('{"throughput": true}', "no number"),
        ('{"throughput": [1]}', "no number"),
        ('{"throughput": "4,5"}', "no number"),
        ('{"throughput": 1' + "0" * 400 + "}", "beyond every number"),
    ],
)
def test_what_is_no_figure(text: str, words: str) -> None:
    with pytest.raises(WrongOutput, match=words):
        read_figures(text, {}, batch_size=1)


def test_patterns_take_the_last_match_in_their_unit() -> None:
    text = "throughput=1\nthroughput=400.5 p99: 2500 us\n"
    found = read_figures(text, {"metrics": METRICS}, batch_size=1)
    assert found == pytest.approx({"throughput_items_per_s": 400.5, "latency_p99_s": 2.5e-3})


@pytest.mark.parametrize("figure", ["400,5", "1.234,5", "1,234.5", "1.2.3"])
def test_a_pattern_never_takes_part_of_a_number(figure: str) -> None:
    with pytest.raises(WrongOutput, match=f"'{figure}', which is no number"):
        read_figures(f"throughput={figure} p99: 3 us", {"metrics": METRICS}, batch_size=1)


def test_a_missing_metric_is_named_with_its_key() -> None:
    metrics = {"latency_p99_s": {"key": "latency_p99_ms", "unit": "ms"}}
    with pytest.raises(WrongOutput, match="expected metric latency_p99_ms"):
        read_figures('{"throughput": 1}', {"metrics": metrics}, batch_size=1)


@pytest.mark.parametrize("status", [-9, 137])
def test_a_program_that_was_killed_is_told_apart_also_behind_a_shell(status: int) -> None:
    error = ended_badly(status, "half way\n")
    assert type(error) is TrialKilled
    assert str(error) == "the program was killed by SIGKILL: half way"
    assert type(ended_badly(-11, "")) is TrialCrashed
    assert type(ended_badly(status, "torch.OutOfMemoryError")) is OutOfMemory
