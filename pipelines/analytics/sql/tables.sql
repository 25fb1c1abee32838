-- What every job reads. The variable `kafka` stands for options of a table: where Kafka is and how to log
-- in (KafkaLogin.java). ${usage}: `llm.usage`, or `llm.audit`, which has the same records for a year.
--
-- The time of a record is that of its append to this topic, by the broker (LogAppendTime), not `ts`,
-- the end of the response. It never runs backwards within a partition, and all records of a user,
-- with all copies of a record, are in one partition. So no query below needs a watermark, and without
-- one no record is late: results are upserts, the last minute and the last session too.

SET 'table.local-time-zone' = 'UTC';
-- What was not touched for so long is forgotten: copies of a usage record come within the 24 h for which
-- a request is delivered again, and a minute ends.
SET 'table.exec.state.ttl' = '26h';

CREATE TABLE usage_records (
  t STRING,
  rid STRING,
  owner ROW<issuer STRING, subject STRING, tenant STRING>,
  model STRING,
  status STRING,
  `usage` ROW<input_tokens BIGINT, output_tokens BIGINT, cached_tokens BIGINT, reasoning_tokens BIGINT>,
  answer_of STRING,
  cost_nano BIGINT,
  first_token_ms BIGINT,
  inter_token_ms DOUBLE,
  written TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL,
  arrived AS PROCTIME()
) WITH (
  'connector' = 'kafka',
  'topic' = '${usage}',
  ${kafka},
  'properties.group.id' = '${prefix}-usage',
  'properties.isolation.level' = 'read_committed',
  'scan.startup.mode' = 'earliest-offset',
  'scan.topic-partition-discovery.interval' = '30s',
  'format' = 'json',
  -- Every reader of the log passes over garbage.
  'json.ignore-parse-errors' = 'true'
);

-- Each response once: of several copies of a usage record the first one counts (log rule §9). "First" is
-- the order of arrival, which within a partition is that of offsets.
CREATE TEMPORARY VIEW bills AS
SELECT
  rid,
  owner.issuer AS issuer,
  COALESCE(owner.tenant, '') AS tenant,
  owner.subject AS subject,
  model,
  status,
  -- The encoder leaves out zeros.
  COALESCE(`usage`.input_tokens, 0) AS input_tokens,
  COALESCE(`usage`.output_tokens, 0) AS output_tokens,
  COALESCE(`usage`.cached_tokens, 0) AS cached_tokens,
  cost_nano,
  first_token_ms,
  inter_token_ms,
  written,
  arrived
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY rid ORDER BY arrived ASC) AS copy
  FROM usage_records
  WHERE t = 'USAGE' AND rid IS NOT NULL AND owner.issuer IS NOT NULL AND owner.subject IS NOT NULL
    AND model IS NOT NULL AND status IS NOT NULL
)
WHERE copy = 1;
