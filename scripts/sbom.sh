#!/bin/sh
# Writes the bill of materials of a release (CycloneDX): what constraints-hashes.txt says that a deployment installs, each
# with the hashes of its files. Needs cyclonedx-py (pip install 'cyclonedx-bom>=7,<8'). The same input gives the same file.
#
#     scripts/sbom.sh dist/sbom.cdx.json

set -eu
cd "$(dirname "$0")/.."
cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible --validate \
    --output-format JSON --output-file "$1" constraints-hashes.txt
