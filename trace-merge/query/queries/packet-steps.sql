-- On what the time of packets went, step by step
select recording, host, vm, direction, step, whose, count(*) as times,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  sum(duration_ns) as ns
from packet_steps group by recording, host, vm, direction, step, whose order by ns desc nulls last
