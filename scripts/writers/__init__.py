"""Writers of small and large sample containers, one module a format, for the demo, the tests and the benchmarks."""
