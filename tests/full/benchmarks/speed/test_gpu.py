"""The benchmark for GPUs: its refusal without one, and a case on a CPU."""

from benchmarks.speed import gpu, probe


def test_a_case_runs_on_a_cpu() -> None:
    args = gpu.arguments(["--quick", "--case", "llama-125m"])
    args.device = "cpu"
    figures = gpu.measure(args)
    names = set(gpu.CASES["llama-125m"].contestants)
    assert figures["peak_bytes"].keys() == figures["milliseconds_per_step"].keys() == names
    assert figures["ratio"].keys() == names - {gpu.PLAIN, gpu.LOADING}


def test_the_cases_of_gradients_run_on_a_cpu() -> None:
    assert len({len(gpu.probe_arguments(name, [])) for name in gpu.PROBES}) == 1
    args = probe.arguments(gpu.probe_arguments("gradients-1b", ["--quick"])[1:])
    args.device, args.batch, args.block = "cpu", 6, 1
    operations = probe.measure(args, 3)["operations"]
    assert operations.keys() == set(probe.NAMES)
    assert operations["exact, variance"] < operations["micro-batches of one stream, variance"]
