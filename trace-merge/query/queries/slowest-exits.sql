-- The exits that took longest, and what the time went on
select recording, host, vm, vcpu, begin_ns, begin_utc, reason, place, duration_ns, kvm_ns, vmm_ns, stolen_ns, blocked_ns
from exits where reason <> 'hlt'
order by duration_ns desc nulls last, recording, vm, vcpu, begin_ns limit 20
