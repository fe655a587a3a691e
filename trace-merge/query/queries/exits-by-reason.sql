-- Why vCPUs left the guest: how often, and how long until they were in it again
select recording, host, vm, reason, count(*) as exits, sum(duration_ns) as ns,
  cast(round(percentile_cont(0.5) within group (order by duration_ns)) as bigint) as p50_ns,
  cast(round(percentile_cont(0.99) within group (order by duration_ns)) as bigint) as p99_ns,
  max(duration_ns) as longest_ns, sum(vmm_ns) as vmm_ns
from exits group by recording, host, vm, reason order by ns desc nulls last
