"""Writers of sample containers, one module per format, for the demo, the tests and the benchmarks."""
