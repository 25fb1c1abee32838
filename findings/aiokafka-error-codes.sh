#!/bin/sh
# aiokafka 0.14.0: of the broker's error codes above 72 it knows 79 only.
#
# Every other one becomes UnknownError, with its own code lost: `errno` is -1, `retriable` is False,
# whatever Kafka says of it (https://kafka.apache.org/protocol, "Error Codes"). Among them are 74
# FENCED_LEADER_EPOCH, 75 UNKNOWN_LEADER_EPOCH, 82 FENCED_INSTANCE_ID, 89 THROTTLING_QUOTA_EXCEEDED
# and 90 PRODUCER_FENCED, of which the broker says that 74, 75 and 89 may be tried again.
#
# Output seen:
#   0.14.0 knows 1..72 and of 73..133: [79]
#   74 UnknownError errno=-1 retriable=False
#   75 UnknownError errno=-1 retriable=False
#   87 UnknownError errno=-1 retriable=False
#   89 UnknownError errno=-1 retriable=False
#   90 UnknownError errno=-1 retriable=False
#   6 NotLeaderForPartitionError errno=6 retriable=True
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install aiokafka==0.14.0
"$folder/venv/bin/python" - <<'END'
import sys

import aiokafka
from aiokafka import errors

known = [code for code in range(1, 134) if errors.for_code(code) is not errors.UnknownError]
missing = [code for code in range(1, 73) if code not in known]
above = [code for code in known if code > 72]
print(f"{aiokafka.__version__} knows 1..72{f' but {missing}' if missing else ''} and of 73..133: {above}")
as_seen = above == [79] and not missing
for code in (74, 75, 87, 89, 90, 6):
    error = errors.for_code(code)
    print(f"{code} {error.__name__} errno={error.errno} retriable={error.retriable}")
    as_seen = as_seen and (error is errors.UnknownError) == (code != 6)
as_seen = as_seen and errors.UnknownError.errno == -1 and not errors.UnknownError.retriable
if not as_seen:
    sys.exit("this has changed")
END
