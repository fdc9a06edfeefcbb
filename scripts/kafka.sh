#!/bin/sh
# Put a Kafka broker, which needs no more than a Java, and Spark's connector below the virtual environment to test on:
# kafka.sh <venv>
# Never fails: where they cannot be fetched the tests are left out.
set -u
scripts=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$1" && pwd)
[ ! -d "$venv/kafka" ] || exit 0

echo "fetching Kafka, to test on"
new=$venv/kafka.new
rm -rf "$new"
mkdir "$new"

# fetch <part>: the jars of one of the lists below
fetch() {
    sed -n "s/^# $1 //p" "$scripts/kafka.sh" | "$venv/bin/python" "$scripts/jars.py" "$new/$1" >"$new/said" 2>&1
}

JAVA_HOME=$("$scripts/java.sh" "$venv")
export JAVA_HOME
if fetch broker && fetch spark; then
    rm "$new/said"
    mv "$new" "$venv/kafka"
else
    tail -n 5 "$new/said"
    echo "Kafka could not be fetched here: its tests are left out"
    rm -rf "$new"
fi
exit 0

# org.apache.kafka:kafka_2.13:4.3.1 and all it needs to run; the last is for its log.
# broker 252dabd586d22149a31661a8afc1a50747714eb1a298bd4a6e780c8c91a13866 at.yawk.lz4:lz4-java:1.10.2
# broker 23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e com.dynatrace.hash4j:hash4j:0.22.0
# broker 53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b com.fasterxml.jackson.core:jackson-annotations:2.21
# broker 12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b com.fasterxml.jackson.core:jackson-core:2.21.2
# broker 8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849 com.fasterxml.jackson.core:jackson-databind:2.21.2
# broker 682f8c7977e02a42748426bf54946e32e52e2f80b84b6642801ab12bd541368a com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2
# broker d25551812fa0c14f37cabaa9401e63eadcea42ce36311183af5622d5bc8a1bc7 com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.21.2
# broker e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7 com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2
# broker ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7 com.github.ben-manes.caffeine:caffeine:3.2.0
# broker b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df com.github.luben:zstd-jni:1.5.6-10
# broker 7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7 com.google.re2j:re2j:1.8
# broker 0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994 com.typesafe.scala-logging:scala-logging_2.13:3.9.6
# broker 6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c com.yammer.metrics:metrics-core:2.2.0
# broker 9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709 commons-beanutils:commons-beanutils:1.11.0
# broker eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8 commons-collections:commons-collections:3.2.2
# broker e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d commons-digester:commons-digester:2.1
# broker 6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4 commons-logging:commons-logging:1.3.5
# broker ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa commons-validator:commons-validator:1.10.1
# broker df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28 net.sf.jopt-simple:jopt-simple:5.0.4
# broker 65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56 net.sourceforge.argparse4j:argparse4j:0.7.0
# broker 52501b7b47510c66f898871adaf6d2968ab7246561d44ced43643a8a587f0b36 org.apache.kafka:kafka-clients:4.3.1
# broker 66a86b8c89718216ffa72fe4e44b9d1bdf3472e4cb9200c36a0742a25febbdba org.apache.kafka:kafka-coordinator-common:4.3.1
# broker d81bc1a3739ff6c9b21815baae00022306342a16d3d94e6a2621201b9980a30d org.apache.kafka:kafka-group-coordinator-api:4.3.1
# broker 4ab56d002e1624185c874199e9e0ffb243dbeb9f68b4d0cadf48ce2f617a1126 org.apache.kafka:kafka-group-coordinator:4.3.1
# broker 4d73a96c6474a4ebdd67a1cee14da1a94cfd6bb9e6e252685ba5667d8ab7f898 org.apache.kafka:kafka-metadata:4.3.1
# broker 46abbf89806dd22d848e997cdfb1431524cab4ec88e38a7d2806e20b24a70609 org.apache.kafka:kafka-raft:4.3.1
# broker d7c719f749579a399011f0df7414de8a78f10f074a6122caa550fdb141351575 org.apache.kafka:kafka-server-common:4.3.1
# broker 01d736599ec3b0cdbb0480c15219170b28cdae189785e7f0c6f1f26e528eaebc org.apache.kafka:kafka-server:4.3.1
# broker 8ceeed7346127e652ea5c650b217890aaff14919f967d27fadce420745bd3066 org.apache.kafka:kafka-share-coordinator:4.3.1
# broker bc2b22639fa554494461d101d599e01bae840d97c4f46e18fdf3d2fe41a47098 org.apache.kafka:kafka-storage-api:4.3.1
# broker 97e3facddd2914a58f28ec91ef35f8da69963eab3651196e97f487924f6dac98 org.apache.kafka:kafka-storage:4.3.1
# broker dcf6785742e0c8ab11a0fc09c62f1192e11e997dc629669a8db82aa40d933c31 org.apache.kafka:kafka-tools-api:4.3.1
# broker c64aaa2a88d8fd382c4800204872917686e542043c7916c9e8797d939d8eb313 org.apache.kafka:kafka-transaction-coordinator:4.3.1
# broker b098abef5ff878e76f60cd6c559b9baa5663ccb1b55f2837558b22c329d32423 org.apache.kafka:kafka_2.13:4.3.1
# broker c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d org.apache.logging.log4j:log4j-api:2.25.4
# broker 10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6 org.apache.logging.log4j:log4j-core:2.25.4
# broker 7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef org.bitbucket.b_c:jose4j:0.9.6
# broker 22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8 org.hdrhistogram:HdrHistogram:2.2.2
# broker 1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab org.jspecify:jspecify:1.0.0
# broker 2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef org.pcollections:pcollections:4.0.2
# broker 4e85d96ff7bc7dc627985523c3541b9917aaa08e956391380c42db21a2c4e5a0 org.scala-lang:scala-library:2.13.18
# broker 6935ff1982b2ac93d695f15aa66921be2f602921277afe002f018fd8c7d6e29b org.scala-lang:scala-reflect:2.13.18
# broker d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0 org.slf4j:slf4j-api:1.7.36
# broker 4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36 org.xerial.snappy:snappy-java:1.1.10.7
# broker e6682acf1ace77508ef13649cbf4f8d09d2cf5457bdb61d25ffb6ac0233d78dd org.yaml:snakeyaml:2.5
# broker 2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f org.slf4j:slf4j-simple:1.7.36

# What dblog.sinks.packages has for Kafka, and all of it that Spark does not have.
# spark 33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3 org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0
# spark f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767 org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
# spark 15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18 org.apache.kafka:kafka-clients:3.9.0
# spark 6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b org.apache.commons:commons-pool2:2.12.0
# spark 4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432 org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0
