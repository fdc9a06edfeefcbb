"""The control plane over HTTP: what people and programs ask of pipelines, and what those say. It moves no data."""
