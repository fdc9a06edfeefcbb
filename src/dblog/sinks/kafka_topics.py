"""Topics of a Kafka cluster, and the meaning of Kafka's errors.

It uses the Kafka client in the driver's JVM, which comes with Spark's connector.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dblog.core.masking import without_secrets
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
"""Kafka's errors after which a retry with the same events may succeed."""
KNOWN_SECONDS = 5.0
"""How long to wait until all brokers know a new topic, in seconds."""
_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+(?:Exception|Error))(?:: (.*))?")
HINTS = {
    "RecordTooLargeException": "raise max.request.size in options, and max.message.bytes of the topic",
    "TopicAuthorizationException": "the user needs the rights to describe and to write the topic",
    "ClusterAuthorizationException": "the user needs the right to write idempotently, or to create topics",
    "SaslAuthenticationException": "check the user and the password in options",
    "InvalidReplicationFactorException": "set the default.replication.factor of the cluster, or create the topic",
}


class Topics:
    """The topics of a cluster. Raises the errors of Kafka's client, which `failure` translates."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        patience = max(options["request.timeout.ms"], options["max.block.ms"], key=int)
        self._options = {**options, "default.api.timeout.ms": patience}

    def create(self, names: Collection[str], partitions: int, settings: Mapping[str, str]) -> None:
        """Create the missing topics with this number of partitions; with 0, the cluster's default."""
        kafka, optional = self._jvm.org.apache.kafka.clients.admin, self._jvm.java.util.Optional
        count = optional.of(partitions) if partitions else optional.empty()
        with self._client() as client:
            there = client.listTopics().names().get()
            new = [kafka.NewTopic(name, count, optional.empty()) for name in names if not there.contains(name)]
            for made in client.createTopics([topic.configs(dict(settings)) for topic in new]).values().values():
                _get(made, "TopicExistsException")

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        """The number of partitions of each topic. Waits for brokers that do not know a new topic yet."""
        deadline = time.monotonic() + KNOWN_SECONDS
        with self._client() as client:
            while True:
                late = time.monotonic() > deadline
                allowed = "" if late else "UnknownTopicOrPartitionException"
                found = _get(client.describeTopics(list(names)).allTopicNames(), allowed)
                if found is not None:
                    return {name: found.get(name).partitions().size() for name in names}
                time.sleep(0.1)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        client = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._options)
        try:
            yield client
        finally:
            client.close(self._jvm.java.time.Duration.ZERO)


def _get(future: Any, allowed: str) -> Any:
    """The result of a future; None if it failed with the allowed error."""
    from py4j.protocol import Py4JJavaError

    try:
        return future.get()
    except Py4JJavaError as error:
        if not allowed or allowed not in str(error):
            raise
        return None


def failure(error: Exception, secrets: Iterable[str]) -> Exception:
    """The error to raise for a failed write: Kafka's root cause, without stack trace and secrets."""
    if isinstance(error, DBLogError):
        return error
    found = _ERROR.findall(str(error))
    if not found:
        return error
    kind, said = found[-1]
    # All options of the producer count as secrets, but numbers among them are only times and sizes.
    said = without_secrets(said, (secret for secret in secrets if not secret.isdigit()))
    if kind in AWAY:
        return SinkUnreachable(f"kafka cannot be reached: {said.strip() or kind}", hint="check the brokers")
    return SinkError(f"kafka refused the batch: {kind}: {said.strip()}", hint=HINTS.get(kind))
