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
dpkg-query --show --showformat 'report: package ${Package} ${Version} ${db:Status-Abbrev}\n' 'strata*'
strata-agent status 2>&1 | sed 's/^/report: /'
setpriv --reuid=nobody --regid=nogroup --groups="$(getent group strata | cut -d : -f 3)" workload --events 500 &&
    echo "report: workload done"
systemctl stop strata-agent.service
echo "report: after stopping: $(systemctl is-active strata-agent.service), $(lsmod | grep -c '^strata ') modules"
dmesg | grep 'strata: ' | sed 's/^/report: /'
systemctl list-units --failed --no-legend --plain | sed 's/^/report: failed unit /'
echo "report: failed units: $(systemctl list-units --failed --no-legend --plain | wc -l)"
