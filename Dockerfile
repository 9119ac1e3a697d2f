# The sidecar in a container. docker build, podman build and buildah bud make the same of it.
#
#   docker build --build-arg REVISION="$(git rev-parse HEAD)" --tag calibration-monitor .
#   docker run --read-only --tmpfs /tmp --volume calibration-monitor:/var/lib/calibration-monitor \
#       --volume ./sidecar.toml:/etc/calibration-monitor/sidecar.toml:ro calibration-monitor
#
# By default both ports listen on the loopback of the container: the detector shares its network
# namespace (a pod, or --network container:...). Over a network see docs/security.md.

# Pinned to patch and release. To pin the bytes as well, ask your registry for the digest and build
# with --build-arg BASE=docker.io/library/python:3.11.15-slim-bookworm@sha256:...
ARG BASE=docker.io/library/python:3.11.15-slim-bookworm

# ---- the environment, from wheels alone: neither this stage nor the next has a compiler, so that NumPy
# does the work of monitor/native/kernels.c
FROM ${BASE} AS builder

WORKDIR /build
COPY requirements.lock deploy/image/build.lock ./
# The tests of numpy and scipy are a quarter of their bytes.
RUN python -m venv --without-pip /opt/calibration-monitor \
    && python -m venv --without-pip /opt/build \
    && python -m pip --python /opt/calibration-monitor/bin/python install \
        --no-cache-dir --no-compile --no-deps --only-binary :all: --require-hashes \
        --requirement requirements.lock \
    && python -m pip --python /opt/build/bin/python install \
        --no-cache-dir --no-compile --no-deps --only-binary :all: --require-hashes \
        --requirement build.lock \
    && find /opt/calibration-monitor/lib/python3.11/site-packages/numpy \
        /opt/calibration-monitor/lib/python3.11/site-packages/scipy \
        -type d -name tests -prune -exec rm -r {} +

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY docs docs
COPY deploy/sidecar.toml deploy/sidecar.toml
COPY deploy/prometheus deploy/prometheus
COPY deploy/grafana/dashboards deploy/grafana/dashboards
COPY monitor monitor
# Bytecode is written here, since nobody may later. Its sources will not change: they are not even
# looked at, so that no time stamp that a copy loses can matter.
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /build/dist \
    && python -m pip --python /opt/calibration-monitor/bin/python install \
        --no-cache-dir --no-compile --no-deps --no-index /build/dist/*.whl \
    && /opt/calibration-monitor/bin/python -m compileall -q -j 0 \
        --invalidation-mode unchecked-hash /opt/calibration-monitor/lib

# ---- the image: the environment, a user, a configuration
FROM ${BASE}

RUN groupadd --gid 10001 calibration-monitor \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/calibration-monitor \
        --shell /usr/sbin/nologin --no-log-init calibration-monitor \
    && install --directory --mode 0750 --owner 10001 --group 10001 /var/lib/calibration-monitor

COPY --from=builder /opt/calibration-monitor /opt/calibration-monitor
# Every key at its default: mount your own over it.
COPY --chmod=0644 deploy/sidecar.toml /etc/calibration-monitor/sidecar.toml

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="calibration-monitor" \
    org.opencontainers.image.description="Online calibration monitor for detectors that report Gaussians" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
ENV CALIBRATION_MONITOR_REVISION="${REVISION}" \
    PATH="/opt/calibration-monitor/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    STATE_DIRECTORY=/var/lib/calibration-monitor

USER 10001:10001
# State is kept here. The version before kept it in the working directory, where the first start of
# this version looks for it.
WORKDIR /var/lib/calibration-monitor
VOLUME ["/var/lib/calibration-monitor"]
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["/opt/calibration-monitor/bin/python", "-I", "-c", "import urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:9464/readyz', timeout=3)"]
ENTRYPOINT ["calibration-monitor"]
CMD ["serve", "--config", "/etc/calibration-monitor/sidecar.toml"]
