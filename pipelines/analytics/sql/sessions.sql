-- What a user did without a pause of ${gap_s} seconds or more.
--
-- Rows of a user are taken in the order in which they arrive, which is that of offsets only where one
-- task reads them all: this job runs with parallelism 1 (`SET` below), whatever the others have.

SET 'parallelism.default' = '1';

CREATE TABLE sessions (
  issuer STRING,
  tenant STRING,
  subject STRING,
  began TIMESTAMP_LTZ(3),
  latest TIMESTAMP_LTZ(3),
  responses BIGINT,
  input_tokens BIGINT,
  output_tokens BIGINT,
  cost_nano BIGINT,
  PRIMARY KEY (issuer, tenant, subject, began) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${prefix}.sessions',
  ${kafka},
  'properties.transaction.timeout.ms' = '60000',
  'key.format' = 'json',
  'key.json.timestamp-format.standard' = 'ISO-8601',
  'value.format' = 'json',
  'value.json.timestamp-format.standard' = 'ISO-8601',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = '${prefix}.sessions'
);

INSERT INTO sessions
SELECT
  issuer,
  tenant,
  subject,
  began,
  MAX(written),
  COUNT(*),
  SUM(input_tokens),
  SUM(output_tokens),
  COALESCE(SUM(cost_nano), 0)
FROM (
  SELECT
    *,
    -- Times of one user never run backwards, so the latest beginning is the present session's.
    MAX(CASE WHEN before IS NULL OR TIMESTAMPDIFF(SECOND, before, written) >= ${gap_s} THEN written END)
      OVER (PARTITION BY issuer, tenant, subject ORDER BY arrived) AS began
  FROM (
    SELECT *, LAG(written) OVER (PARTITION BY issuer, tenant, subject ORDER BY arrived) AS before
    FROM bills
  )
)
GROUP BY issuer, tenant, subject, began;
