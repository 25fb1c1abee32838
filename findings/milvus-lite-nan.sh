#!/bin/sh
# milvus-lite 3.2.2 (pymilvus 3.0.2): vectors with NaN are rows like others, and searches score them NaN.
#
# Neither the client nor the embedded database refuses a vector that has no direction. An embedding
# that overflowed is counted as inserted, and comes last in every search, with the score NaN, which
# most JSON encoders write as a word that JSON does not have, or as null. A query vector with NaN
# finds every row, all with the score NaN.
#
# Output seen:
#   inserted 3
#   query [1, 0]: [(1, 1.0), (3, 0.0), (2, nan)]
#   query [nan, 0]: [(1, nan), (2, nan), (3, nan)]
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install \
  pymilvus==3.0.2 milvus-lite==3.2.2
FOLDER=$folder "$folder/venv/bin/python" - <<'END'
import math
import os
import sys
import warnings

warnings.simplefilter("ignore")
import pymilvus

client = pymilvus.MilvusClient(uri=os.environ["FOLDER"] + "/vectors.db")
schema = client.create_schema(auto_id=False)
schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=2)
index = client.prepare_index_params()
index.add_index("vector", index_type="FLAT", metric_type="COSINE")
client.create_collection("rows", schema=schema, index_params=index)
client.load_collection("rows")
rows = [[1.0, 0.0], [math.nan, 1.0], [0.0, 1.0]]
inserted = client.insert("rows", [{"id": n, "vector": row} for n, row in enumerate(rows, 1)])


def search(vector):
    return [(hit["id"], hit["distance"]) for hit in client.search("rows", data=[vector], limit=3)[0]]


plain, odd = search([1.0, 0.0]), search([math.nan, 0.0])
print("inserted", inserted["insert_count"])
print(f"query [1, 0]: {plain}")
print(f"query [nan, 0]: {odd}")
as_seen = inserted["insert_count"] == 3 and [each for each, _ in plain] == [1, 3, 2]
as_seen = as_seen and math.isnan(plain[2][1]) and all(math.isnan(score) for _, score in odd)
if not as_seen:
    sys.exit("this has changed")
END
