#!/bin/sh
echo "report: system $(systemctl is-system-running) on $(uname -r)"
echo "report: root $(findmnt --noheadings --output SOURCE,FSTYPE,OPTIONS / | tr -s ' ')"
echo "report: source of randomness $(cat /sys/class/misc/hw_random/rng_available)"
echo "report: network $(cd /sys/class/net && for one in *; do echo "$one $(cat $one/operstate);"; done | tr '\n' ' ')"
apt-get update 2>&1 | sed 's/^/report: apt: /'
DEBIAN_FRONTEND=noninteractive apt-get --yes install lab-greeting 2>&1 | sed 's/^/report: apt: /'
echo "report: installed $(lab-greeting)"
echo "report: unit $(systemctl is-active strata-agent.service)"
echo "report: device $(stat -c '%U:%G %a' /dev/strata)"
dpkg-query --show --showformat 'report: package ${Package} ${Version} ${db:Status-Abbrev}\n' 'strata*' libstrata1 python3-strata
strata-agent status 2>&1 | sed 's/^/report: /'
as_member() {
    setpriv --reuid=nobody --regid=nogroup --groups="$(getent group strata | cut -d : -f 3)" "$@"
}
as_member workload --events 500 && echo "report: workload done"
as_member python3 /usr/bin/shop.py 100 2>&1 | sed 's/^/report: /'
# two copies of the library in a process, as of a program and its extension
mkdir /tmp/copies
cp /usr/lib/x86_64-linux-gnu/libstrata.so.1 /tmp/copies/copy.so
sed 's|"libstrata.so.1"|"/tmp/copies/copy.so"|' /usr/lib/python3/dist-packages/strata.py > /tmp/copies/strata_copy.py
as_member env PYTHONPATH=/tmp/copies python3 -c '
import strata, strata_copy
copies = strata, strata_copy
events = [copy.Event("copies:" + copy.__name__) for copy in copies]
print("copies:", [event() for event in events], [copy.error() for copy in copies])' 2>&1 | sed 's/^/report: /'
systemctl start strata-metrics.service
systemd-analyze verify --man=no /usr/lib/systemd/system/strata-recorder@.service 2>&1 | sed 's/^/report: verify: /'
bash -c 'for _ in $(seq 50); do exec 3<>/dev/tcp/127.0.0.1/9464 && break; sleep 0.1; done 2> /dev/null
    printf "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3
    grep -m 1 strata_vcpu_seconds <&3' | sed 's/^/report: metrics: /'
echo "report: metrics $(systemctl is-active strata-metrics.service)"
systemctl stop strata-agent.service
echo "report: after stopping: $(systemctl is-active strata-agent.service), $(lsmod | grep -c '^strata ') modules"
dmesg | grep 'strata: ' | sed 's/^/report: /'
systemctl list-units --failed --no-legend --plain | sed 's/^/report: failed unit /'
echo "report: failed units: $(systemctl list-units --failed --no-legend --plain | wc -l)"
