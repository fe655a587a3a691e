-- How long packets of network devices took, sent and received
select recording, host, vm, net, direction, count(*) as packets, sum(bytes) as bytes,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  max(duration_ns) as longest_ns
from packets group by recording, host, vm, net, direction order by p99_ns desc nulls last
