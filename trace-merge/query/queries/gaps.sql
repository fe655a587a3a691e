-- Where records may be missing, the longest time first
select recording, host, vm, layer, cpu, vcpu, begin_ns, begin_utc, duration_ns
from gaps
order by duration_ns desc nulls last, recording, vm nulls last, layer, cpu nulls last, vcpu nulls last, begin_ns limit 50
