-- How long disk requests took, by kind
select recording, host, vm, disk, kind, count(*) as requests, sum(bytes) as bytes,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  max(duration_ns) as longest_ns
from flows group by recording, host, vm, disk, kind order by p99_ns desc nulls last
