"""What is asked of a Kafka cluster beside writing: which topics there are, and what an error means.

It is asked through the client that Spark's connector has brought into the driver's JVM.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dblog.errors import DBLogError, SinkError, SinkUnreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWAY = {
    "BrokerNotAvailableException",
    "CoordinatorNotAvailableException",
    "DisconnectException",
    "InvalidProducerEpochException",
    "KafkaStorageException",
    "LeaderNotAvailableException",
    "NetworkException",
    "NotCoordinatorException",
    "NotEnoughReplicasAfterAppendException",
    "NotEnoughReplicasException",
    "NotLeaderOrFollowerException",
    "OutOfOrderSequenceException",
    "TimeoutException",
    "UnknownProducerIdException",
    "UnknownTopicOrPartitionException",
}
"""Errors of Kafka's after which the same events may be taken."""
_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+(?:Exception|Error))(?:: (.*))?")
HINTS = {
    "RecordTooLargeException": "raise max.request.size in options, and max.message.bytes of the topic",
    "TopicAuthorizationException": "the user needs the rights to describe and to write the topic",
    "ClusterAuthorizationException": "the user needs the right to write idempotently, or to create topics",
    "SaslAuthenticationException": "check the user and the password in options",
    "InvalidReplicationFactorException": "set the default.replication.factor of the cluster, or create the topic",
}


def connector_is_there(spark: SparkSession) -> bool:
    """Whether Spark can write to Kafka."""
    from py4j.protocol import Py4JJavaError

    loader = _jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider")
    except Py4JJavaError:
        return False
    return True


def topics(
    spark: SparkSession,
    options: Mapping[str, str],
    names: Collection[str],
    partitions: int,
    settings: Mapping[str, str],
) -> dict[str, int]:
    """The number of partitions of each topic. Those that are not there are made: with so many partitions, or as the
    cluster has it where that is 0, and with these settings."""
    kafka, java = _jvm(spark).org.apache.kafka.clients.admin, _jvm(spark).java
    patience = {name: options[name] for name in ("request.timeout.ms", "max.block.ms")}
    client = kafka.AdminClient.create({**options, "default.api.timeout.ms": max(patience.values(), key=int)})
    try:
        there = client.listTopics().names().get()
        some = java.util.Optional.of(partitions) if partitions else java.util.Optional.empty()
        new = [kafka.NewTopic(name, some, java.util.Optional.empty()) for name in names if not there.contains(name)]
        for made in client.createTopics([topic.configs(dict(settings)) for topic in new]).values().values():
            _unless(made, "TopicExistsException")
        described = client.describeTopics(list(names)).allTopicNames().get()
        return {name: described.get(name).partitions().size() for name in names}
    finally:
        client.close(java.time.Duration.ZERO)


def _unless(future: Any, expected: str) -> None:
    from py4j.protocol import Py4JJavaError

    try:
        future.get()
    except Py4JJavaError as error:
        if expected not in str(error):
            raise


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def failure(error: Exception, secrets: Iterable[str]) -> Exception:
    """What to raise for an error of a write: of Kafka's own the deepest, without the stack and without secrets."""
    if isinstance(error, DBLogError):
        return error
    found = _ERROR.findall(str(error))
    if not found:
        return error
    kind, said = found[-1]
    for secret in secrets:
        said = said.replace(secret, "***")
    if kind in AWAY:
        return SinkUnreachable(f"kafka is away: {said.strip() or kind}", hint="check the brokers")
    return SinkError(f"kafka does not take the batch: {kind}: {said.strip()}", hint=HINTS.get(kind))
