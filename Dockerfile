# Small, without root, content with a read-only file system: only /data is written.
#   docker build -t tidegate .
#   docker run --read-only -p 8080:8080 -v tidegate:/data -e TIDEGATE_UPSTREAM=https://... tidegate

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proxy ./proxy
# pip stays in this stage: the environment that is copied holds what Tidegate needs and no more.
RUN python -m venv --without-pip /opt/tidegate \
    && pip --python /opt/tidegate install --no-cache-dir .

FROM python:3.11-slim
RUN groupadd --system --gid 10001 tidegate \
    && useradd --system --uid 10001 --gid tidegate --no-create-home --home-dir /data tidegate \
    && install -d -o tidegate -g tidegate -m 0700 /data
COPY --from=build /opt/tidegate /opt/tidegate
# Every address, since the container is reached from outside. The start is refused when an upstream
# has a key of its own and server.client_keys is not set.
ENV PATH="/opt/tidegate/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_SERVER__HOST=0.0.0.0 \
    TIDEGATE_SERVER__PORT=8080 \
    TIDEGATE_STORE__URL=sqlite:////data/tidegate.db
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
# A tidegate.toml in the volume is found; TIDEGATE_CONFIG names another.
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TIDEGATE_SERVER__PORT']), timeout=2); c.request('GET', '/healthz'); assert c.getresponse().status == 200"]
ENTRYPOINT ["tidegate"]
CMD ["serve"]
