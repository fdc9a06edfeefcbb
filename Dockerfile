# dblog, the drivers of its databases, the lakes' writers, Spark and Java; for the driver and for Spark's executors.
#
#   docker build -t dblog .
#   docker run -v ./shop.toml:/etc/dblog/pipeline.toml:ro -v dblog:/var/lib/dblog -e SHOP_PASSWORD dblog
#
# deploy/README.md says more.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
ARG EXTRAS=delta,http,iceberg
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /var/lib/dblog --create-home --shell /usr/sbin/nologin dblog
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[${EXTRAS}]"
COPY --chmod=755 deploy/docker/entrypoint.sh /usr/local/bin/entrypoint.sh

# Checkpoints, spools and the state store: keep it on a volume. `folder` in the pipeline's file names a folder in it.
ENV DBLOG_STATE=/var/lib/dblog/state.db XDG_CACHE_HOME=/var/lib/dblog/.cache PYTHONUNBUFFERED=1
VOLUME /var/lib/dblog
WORKDIR /var/lib/dblog
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM

# The API listens in the container alone. To reach it from outside: --http 0.0.0.0:8080 --token-env DBLOG_TOKEN
ENTRYPOINT ["tini", "--", "entrypoint.sh"]
CMD ["run", "/etc/dblog/pipeline.toml", "--http", "127.0.0.1:8080"]
HEALTHCHECK --start-period=60s --interval=15s --timeout=5s --retries=4 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/live', timeout=4)"]
