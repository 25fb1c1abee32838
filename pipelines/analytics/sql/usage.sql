-- Tokens, cost, rates and latencies by the minute.

-- A percentile is made of all values again for each result, so not for each record.
SET 'table.exec.mini-batch.enabled' = 'true';
SET 'table.exec.mini-batch.allow-latency' = '1s';
SET 'table.exec.mini-batch.size' = '5000';

CREATE TABLE usage_minutes (
  `minute` TIMESTAMP_LTZ(0),
  model STRING,
  tenant STRING,
  responses BIGINT,
  input_tokens BIGINT,
  output_tokens BIGINT,
  cached_tokens BIGINT,
  -- In billionths, of the `priced` responses: the others have no price.
  cost_nano BIGINT,
  priced BIGINT,
  PRIMARY KEY (`minute`, model, tenant) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${prefix}.usage_minutes',
  ${kafka},
  'properties.transaction.timeout.ms' = '60000',
  'key.format' = 'json',
  'key.json.timestamp-format.standard' = 'ISO-8601',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '${prefix}.usage_minutes'
);

INSERT INTO usage_minutes
SELECT
  CAST(FLOOR(written TO MINUTE) AS TIMESTAMP_LTZ(0)),
  model,
  tenant,
  COUNT(*),
  SUM(input_tokens),
  SUM(output_tokens),
  SUM(cached_tokens),
  COALESCE(SUM(cost_nano), 0),
  COUNT(cost_nano)
FROM bills
GROUP BY CAST(FLOOR(written TO MINUTE) AS TIMESTAMP_LTZ(0)), model, tenant;

CREATE TABLE request_minutes (
  `minute` TIMESTAMP_LTZ(0),
  responses BIGINT,
  failed BIGINT,
  -- Mean over the whole minute, and the busiest second of it.
  per_second DOUBLE,
  peak BIGINT,
  PRIMARY KEY (`minute`) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${prefix}.request_minutes',
  ${kafka},
  'properties.transaction.timeout.ms' = '60000',
  'key.format' = 'json',
  'key.json.timestamp-format.standard' = 'ISO-8601',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '${prefix}.request_minutes'
);

INSERT INTO request_minutes
SELECT
  CAST(FLOOR(`second` TO MINUTE) AS TIMESTAMP_LTZ(0)),
  SUM(responses),
  SUM(failed),
  CAST(SUM(responses) AS DOUBLE) / 60,
  MAX(responses)
FROM (
  SELECT
    FLOOR(written TO SECOND) AS `second`,
    COUNT(*) AS responses,
    COUNT(*) FILTER (WHERE status = 'failed') AS failed
  FROM bills
  GROUP BY FLOOR(written TO SECOND)
)
GROUP BY CAST(FLOOR(`second` TO MINUTE) AS TIMESTAMP_LTZ(0));

CREATE TABLE latency_minutes (
  `minute` TIMESTAMP_LTZ(0),
  model STRING,
  -- Of responses that have a first token; of those that have a time between tokens.
  first_tokens BIGINT,
  first_token_p50_ms DOUBLE,
  first_token_p95_ms DOUBLE,
  first_token_p99_ms DOUBLE,
  inter_tokens BIGINT,
  inter_token_p50_ms DOUBLE,
  inter_token_p95_ms DOUBLE,
  inter_token_p99_ms DOUBLE,
  PRIMARY KEY (`minute`, model) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${prefix}.latency_minutes',
  ${kafka},
  'properties.transaction.timeout.ms' = '60000',
  'key.format' = 'json',
  'key.json.timestamp-format.standard' = 'ISO-8601',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '${prefix}.latency_minutes'
);

INSERT INTO latency_minutes
SELECT
  `minute`,
  model,
  first_tokens,
  first_token[1],
  first_token[2],
  first_token[3],
  inter_tokens,
  inter_token[1],
  inter_token[2],
  inter_token[3]
FROM (
  SELECT
    CAST(FLOOR(written TO MINUTE) AS TIMESTAMP_LTZ(0)) AS `minute`,
    model,
    COUNT(first_token_ms) AS first_tokens,
    PERCENTILE(first_token_ms, ARRAY[0.5, 0.95, 0.99]) AS first_token,
    COUNT(inter_token_ms) AS inter_tokens,
    PERCENTILE(inter_token_ms, ARRAY[0.5, 0.95, 0.99]) AS inter_token
  FROM bills
  GROUP BY CAST(FLOOR(written TO MINUTE) AS TIMESTAMP_LTZ(0)), model
);
