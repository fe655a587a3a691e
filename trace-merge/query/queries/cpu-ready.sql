-- How long vCPUs were ready and not run, as a share of the time that is known, by VM
select recording, host, vm, coalesce(sum(duration_ns) filter (where state in ('preempted', 'woken')), 0) as ready_ns,
  round(1e2 * coalesce(sum(duration_ns) filter (where state in ('preempted', 'woken')), 0) / sum(duration_ns), 3) as percent
from vcpu_states where state <> 'unknown' group by recording, host, vm order by percent desc nulls last
