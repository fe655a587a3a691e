-- On what the time of disk requests went, step by step
select recording, host, vm, kind, step, whose, count(*) as times,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  sum(duration_ns) as ns
from flow_steps group by recording, host, vm, kind, step, whose order by ns desc nulls last
