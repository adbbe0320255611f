"""Built-in models with random weights; each file's `build` returns a module and its inputs."""
