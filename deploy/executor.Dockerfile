# An image for the executors of a Spark cluster: Spark, and what the tasks of TrinityLake maintenance import.
#
#     docker build --file deploy/executor.Dockerfile --tag registry.example/trinitylake-executor:1 .
#
# Tasks must run the minor version of Python that the driver runs, and Spark the driver's version. The build fails
# if the Python of the base image is another one than PYTHON_VERSION; choose another base image then.
ARG SPARK_IMAGE=apache/spark:4.1.4-python3
FROM ${SPARK_IMAGE}
ARG PYTHON_VERSION=3.12
USER root
COPY deploy/executor-hashes.txt /tmp/executor-hashes.txt
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/trinitylake
RUN /opt/trinitylake/bin/python -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '${PYTHON_VERSION}')"
RUN /opt/trinitylake/bin/python -m pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /tmp/executor-hashes.txt
RUN /opt/trinitylake/bin/python -c "import pyarrow, numpy, mmh3, google.protobuf, fsspec, obstore, s3fs"
ENV PYSPARK_PYTHON=/opt/trinitylake/bin/python
USER spark
