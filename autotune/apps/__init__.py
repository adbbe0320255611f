"""One file per command: glue between the layers; values out, nothing printed."""
