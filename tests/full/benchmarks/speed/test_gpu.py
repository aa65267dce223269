"""The benchmark for GPUs: its refusal without one, and a case on a CPU."""

from benchmarks.speed import gpu


def test_a_case_runs_on_a_cpu() -> None:
    args = gpu.arguments(["--quick", "--case", "llama-125m"])
    args.device = "cpu"
    figures = gpu.measure(args)
    names = set(gpu.CASES["llama-125m"].contestants)
    assert figures["peak_bytes"].keys() == figures["milliseconds_per_step"].keys() == names
    assert figures["ratio"].keys() == names - {gpu.PLAIN, gpu.LOADING}
