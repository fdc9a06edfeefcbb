#!/bin/sh
# Runs `dblog` with the given arguments. The argument `executor`, which Spark on Kubernetes gives to the containers of its
# executors, starts Spark's executor instead, with what Spark has put into the environment.
set -eu

if [ "${1:-}" != executor ]; then
    exec dblog "$@"
fi

spark_home=${SPARK_HOME:-$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: one option of Java each, which may have blanks in it.
set --
number=0
while eval "[ \"\${SPARK_JAVA_OPT_$number+set}\" = set ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done

exec java "$@" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark_home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
