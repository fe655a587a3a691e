-- Which ports and device pages the guest had the VMM serve
select recording, host, vm, place, reason, count(*) as exits, sum(vmm_ns) as vmm_ns
from exits where place is not null
group by recording, host, vm, place, reason order by vmm_ns desc nulls last
