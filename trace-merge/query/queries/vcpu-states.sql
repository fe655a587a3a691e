-- What share of its time each vCPU spent in which state
select host, vm, vcpu, state, sum(duration_ns) as ns,
  round(1e2 * sum(duration_ns) / sum(sum(duration_ns)) over (partition by recording, vm, vcpu), 2) as percent
from vcpu_states group by host, recording, vm, vcpu, state order by host, vm, vcpu, ns desc nulls last
