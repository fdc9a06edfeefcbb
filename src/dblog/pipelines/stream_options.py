"""The name of a stream, and the options of the Spark source that it reads with."""

from __future__ import annotations

from dblog.ha.term import Term
from dblog.pipelines.cascades import cascade_option
from dblog.pipelines.config import Config, SinkConfig
from dblog.pipelines.secrets import Secret
from dblog.pipelines.stream_folder import StreamFolder
from dblog.sinks.base import Sink, SinkContext


def stream_name(config: Config, sink: SinkConfig, folder: StreamFolder) -> str:
    """The name of a sink's stream. The stream of the only sink has the pipeline's name. It keeps this name, and so its
    slot, when other sinks are added later."""
    if config.slot is not None:
        return config.name
    return folder.name() or (config.name if config.alone else f"{config.name}_{sink.name}")


def stream_options(
    config: Config, sink: SinkConfig, folder: StreamFolder, context: SinkContext, made: Sink, *, term: Term | None
) -> dict[str, str]:
    """The options of the stream of a context. `made` is the sink that it writes to."""
    name = context.pipeline
    cascades = {each.name: each.maker(each.settings, context).cascades for each in config.sinks}
    return {
        **config.source,
        **sink.options(made),
        **_batch_times(config),
        **cascade_option(config.source, cascades),
        "slot": config.slot or name,
        "pipeline": name,
        "spool": f"{config.spool}/{sink.name}" if config.spool else folder.spool,
        **{name: Secret(value) for name, value in config.objects.options().items()},
        "deliver": "ranges",
        "before": "true" if made.before else "false",
        **({} if config.state is None else {"state": config.state}),
        **({} if term is None else {"lease": str(term.file.path)}),
    }


def _batch_times(config: Config) -> dict[str, str]:
    """The options that say when batches run and how long they may take, unless the user has set them. A batch with a
    round may take as long as there is between two batches without one: a change waits for the rest of one such batch,
    and for the next."""
    if config.every <= 0:
        return {}
    computed = {"batchSeconds": config.every, "maxDelaySeconds": min(max(2 * config.every, 0.01), 3600.0)}
    given = {name.lower() for name in config.source}
    return {name: str(value) for name, value in computed.items() if name.lower() not in given}
