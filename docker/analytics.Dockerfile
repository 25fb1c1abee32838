# Flink with the jobs of analytics (docs/analytics.md): the connector for Kafka, the compiled programs, and the SQL.
#   docker build -f docker/analytics.Dockerfile --build-arg MAVEN_DIGEST=sha256:… --build-arg FLINK_DIGEST=sha256:… -t tailrace/analytics:TAG .
# Base images are named by digest, without a default: look the digests up before the build.
ARG MAVEN_DIGEST
ARG FLINK_DIGEST

FROM docker.io/library/maven:3-eclipse-temurin-17@${MAVEN_DIGEST} AS jars
WORKDIR /src
COPY locks/flink/pom.xml ./locks/flink/
COPY locks/flink-jars.sha256 ./locks/
RUN mvn -q -B -C -f locks/flink/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/jars \
    && cd /jars && sha256sum --check --strict /src/locks/flink-jars.sha256
COPY pipelines/analytics/ ./pipelines/analytics/
RUN javac -cp '/jars/*' -d /classes pipelines/analytics/*.java \
    && jar --create --file /analytics.jar --main-class Main -C /classes .

FROM docker.io/library/flink:2.3.0-java17@${FLINK_DIGEST}
# Everything else of /jars is in Flink's own distribution.
COPY --from=jars /jars/flink-sql-connector-kafka-5.0.0-2.2.jar /opt/flink/lib/
COPY --from=jars /analytics.jar /opt/flink/usrlib/
COPY pipelines/analytics/sql/ /opt/flink/sql/
USER 9999:9999
CMD ["help"]
