"""From a YAML file to a `SearchSpace`: data only, nothing in it is run except a named objective."""
