"""What is asked of a Kafka cluster beside writing: which topics there are, and what an error means.

It is asked through the client that Spark's connector has brought into the driver's JVM.
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
"""Errors of Kafka's after which the same events may be taken."""
KNOWN_SECONDS = 5.0
"""In which all brokers know of a new topic."""
_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:\w+\.)*(\w+(?:Exception|Error))(?:: (.*))?")
HINTS = {
    "RecordTooLargeException": "raise max.request.size in options, and max.message.bytes of the topic",
    "TopicAuthorizationException": "the user needs the rights to describe and to write the topic",
    "ClusterAuthorizationException": "the user needs the right to write idempotently, or to create topics",
    "SaslAuthenticationException": "check the user and the password in options",
    "InvalidReplicationFactorException": "set the default.replication.factor of the cluster, or create the topic",
}


class Topics:
    """The topics of a cluster. Errors are those of Kafka's client: `failure` says what they mean."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        patience = max(options["request.timeout.ms"], options["max.block.ms"], key=int)
        self._options = {**options, "default.api.timeout.ms": patience}

    def create(self, names: Collection[str], partitions: int, settings: Mapping[str, str]) -> None:
        """Make those that are not there: with so many partitions, or as the cluster has it where that is 0."""
        kafka, optional = self._jvm.org.apache.kafka.clients.admin, self._jvm.java.util.Optional
        count = optional.of(partitions) if partitions else optional.empty()
        with self._client() as client:
            there = client.listTopics().names().get()
            new = [kafka.NewTopic(name, count, optional.empty()) for name in names if not there.contains(name)]
            for made in client.createTopics([topic.configs(dict(settings)) for topic in new]).values().values():
                _get(made, "TopicExistsException")

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        """How many partitions each of them has. A broker may not know yet of a topic that has just been made."""
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
    """What a future has; None after the error that is allowed."""
    from py4j.protocol import Py4JJavaError

    try:
        return future.get()
    except Py4JJavaError as error:
        if not allowed or allowed not in str(error):
            raise
        return None


def failure(error: Exception, secrets: Iterable[str]) -> Exception:
    """What to raise for an error of a write: of Kafka's own the deepest, without the stack and without secrets."""
    if isinstance(error, DBLogError):
        return error
    found = _ERROR.findall(str(error))
    if not found:
        return error
    kind, said = found[-1]
    # Numbers are times and sizes: all options of the producer count as secrets.
    said = without_secrets(said, (secret for secret in secrets if not secret.isdigit()))
    if kind in AWAY:
        return SinkUnreachable(f"kafka is away: {said.strip() or kind}", hint="check the brokers")
    return SinkError(f"kafka does not take the batch: {kind}: {said.strip()}", hint=HINTS.get(kind))
