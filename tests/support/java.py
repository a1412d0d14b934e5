"""How the JVMs of tests and of smoke benchmarks run."""

# They end before the optimizing compiler pays, and collect their garbage on the processor that they have.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
