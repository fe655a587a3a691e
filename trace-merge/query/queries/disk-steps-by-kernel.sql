-- The 99th percentile of each step of disk requests by the host's kernel and the guest's, over all recordings, hosts and VMs
select recordings.kernel as host_kernel, vms.kernel as guest_kernel, step,
  count(distinct flow_steps.recording) as recordings, count(*) as times,
  cast(round(percentile_cont(0.99) within group (order by flow_steps.duration_ns)) as bigint) as p99_ns
from flow_steps
left join (select distinct recording, host, kernel from recordings) as recordings
  on recordings.recording = flow_steps.recording and recordings.host is not distinct from flow_steps.host
left join (select distinct recording, vm, kernel from vms) as vms
  on vms.recording = flow_steps.recording and vms.vm = flow_steps.vm
group by recordings.kernel, vms.kernel, step order by p99_ns desc nulls last
