-- How long vCPUs were ready and not run, by limits too, as a share of the time that they ran or were ready, by VM
select recording, host, vm,
  coalesce(sum(duration_ns) filter (where state in ('preempted', 'woken', 'not_allowed')), 0) as ready_ns,
  round(1e2 * coalesce(sum(duration_ns) filter (where state in ('preempted', 'woken', 'not_allowed')), 0)
    / sum(duration_ns), 3) as percent
from vcpu_states where state not in ('halted', 'blocked_in_kvm', 'blocked_in_vmm', 'ended', 'unknown')
group by recording, host, vm order by percent desc nulls last
