"""The control plane over HTTP: request and control dumps, change settings, read the state of pipelines."""
