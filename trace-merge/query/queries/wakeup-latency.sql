-- How long tasks took from being woken until they ran, by name
select recording, host, vm, comm, count(*) as wakeups,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  max(duration_ns) as longest_ns
from wakeups group by recording, host, vm, comm order by longest_ns desc nulls last
