"""The parts of a report, one function each."""
