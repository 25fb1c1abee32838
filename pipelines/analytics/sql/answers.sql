-- What a pipeline answered, by the minute: its output topic ${answers}, whose records are
-- `{"answer", "model", "pipeline", "usage", …}`. Of a structured answer the label is its member ${label},
-- of any other the text.

CREATE TABLE answer_records (
  answer STRING,
  pipeline STRING,
  `usage` ROW<input_tokens BIGINT, output_tokens BIGINT>,
  written TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL
) WITH (
  'connector' = 'kafka',
  'topic' = '${answers}',
  ${kafka},
  'properties.group.id' = '${prefix}-answers',
  -- A pipeline writes transactions, and what it aborted was never answered.
  'properties.isolation.level' = 'read_committed',
  'scan.startup.mode' = 'earliest-offset',
  'scan.topic-partition-discovery.interval' = '30s',
  'format' = 'json',
  'json.ignore-parse-errors' = 'true'
);

CREATE TABLE answer_minutes (
  `minute` TIMESTAMP_LTZ(0),
  pipeline STRING,
  label STRING,
  answers BIGINT,
  input_tokens BIGINT,
  output_tokens BIGINT,
  PRIMARY KEY (`minute`, pipeline, label) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${prefix}.answer_minutes',
  ${kafka},
  'properties.transaction.timeout.ms' = '60000',
  'key.format' = 'json',
  'key.json.timestamp-format.standard' = 'ISO-8601',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '${prefix}.answer_minutes'
);

INSERT INTO answer_minutes
SELECT
  `minute`,
  pipeline,
  label,
  COUNT(*),
  COALESCE(SUM(input_tokens), 0),
  COALESCE(SUM(output_tokens), 0)
FROM (
  SELECT
    CAST(FLOOR(written TO MINUTE) AS TIMESTAMP_LTZ(0)) AS `minute`,
    pipeline,
    COALESCE(JSON_VALUE(answer, '$.${label}'), answer) AS label,
    `usage`.input_tokens AS input_tokens,
    `usage`.output_tokens AS output_tokens
  FROM answer_records
  WHERE answer IS NOT NULL AND pipeline IS NOT NULL
)
GROUP BY `minute`, pipeline, label;
