-- What share of its time each vCPU spent in which state
select recording, host, vm, vcpu, state, sum(duration_ns) as ns,
  round(1e2 * sum(duration_ns) / sum(sum(duration_ns)) over (partition by recording, host, vm, vcpu), 2) as percent
from vcpu_states group by recording, host, vm, vcpu, state order by host, recording, vm, vcpu, ns desc nulls last
