//! A guest with a network device on a tap of its host, a socket device, a source of random bytes and a balloon: it
//! gives memory back to the host and gets it again, pings the host and sends it bytes over TCP, is got into by ssh, and
//! reads random bytes; then the host calls it, and it the host, over the socket device. Another guest has its network
//! through passt, asks for its address, and sends the same bytes. One boot of the host.
//!
//! Leaves in the results: `network.trace`, `network.log`, `network.status`, the bytes as the host got them in
//! `received`, what a shell of the guest said over ssh in `by-ssh`, what the guest gave back of a call in `given-back`
//! and what it sent itself in `served`, what is left of the socket in `sockets`, what became of requests to the balloon
//! in `inflated.json` and `deflated.json`, how much anonymous memory the VM's process had meanwhile in `resident`, and
//! what `strata run` says of taps that cannot be had in `missing.log` and `busy.log`. Of the guest behind passt there
//! are `passt.trace`, `passt.log`, `passt.status`, and the bytes in `received-by-passt`.

use crate::build::binaries::{self, Purpose};
use crate::build::guest_image::GuestImage;
use crate::build::shared_objects;
use crate::fetch::module_tree::ModuleTree;
use crate::fetch::tools::{self, Tool};
use crate::machine::host::{HostResult, HostRun};
use crate::paths::Paths;
use crate::process;
use crate::provision::Lab;
use crate::scenarios::{self, ScenarioError};
use std::process::Command;
use std::time::Duration;

/// How often the guest pings the host.
pub const PINGS: u32 = 5;
/// Bytes that the guest sends over TCP.
pub const SENT: usize = 256 << 10;
/// Bytes that go to the guest over the socket device and back.
pub const GIVEN_BACK: usize = 512 << 10;
/// Random bytes that the guest reads.
pub const RANDOM: u64 = 300;
/// Memory that the host wants back, MiB.
pub const WANTED: u64 = 48;
/// Pieces of a MiB that the guest fills first. It frees every other one: so what it gives back had been in use, and no
/// report of free memory tells of pieces as small as that.
pub const PIECES: u64 = 128;
/// Modules of the guest.
const GUEST_MODULES: [&str; 6] =
    ["virtio_mmio", "virtio_net", "vmw_vsock_virtio_transport", "virtio-rng", "virtio_balloon", "pvpanic-mmio"];
/// The host's module that makes taps.
const HOST_MODULE: &str = "tun";
/// Programs of the host, and one of a guest that the host gets into by ssh.
const TOOLS: [Tool; 4] = [
    Tool { program: "passt", package: "passt" },
    Tool { program: "dbclient", package: "dropbear-bin" },
    Tool { program: "dropbearkey", package: "dropbear-bin" },
    Tool { program: SSH_SERVER, package: "dropbear-bin" },
];
const SSH_SERVER: &str = "dropbear";
/// Makes the key `$1` of the host's user.
const MAKE_KEY: &str = r#"
set -e
rm -f "$1"
dropbearkey -t ed25519 -f "$1"
dropbearkey -y -f "$1" | grep ^ssh- > "$1.pub"
"#;

const GUEST_SCRIPT: &str = "\
free_kib() { grep MemFree: /proc/meminfo | tr -dc 0-9; }
# $1 is how MemFree is to compare with the number of KiB $2.
until_free() { for turn in $(seq 200); do [ $(free_kib) $1 $2 ] && break; sleep 0.1; done; }
mkdir /tmp/pieces
for piece in $(seq 128); do head -c 1048576 /dev/zero > /tmp/pieces/$piece; done
rm /tmp/pieces/*[13579]
before=$(free_kib)
echo \"free before the balloon: $before\"
until_free -lt $((before - 40000))
echo \"free with the balloon: $(free_kib)\"
until_free -gt $((before - 10000))
echo \"free after the balloon: $(free_kib)\"
rm -r /tmp/pieces
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip addr add 192.168.77.2/24 dev eth0
ip link set eth0 up
cat /sys/class/net/eth0/address
echo \"guest is up\"
ping -c 5 192.168.77.1
yes strata | head -c 262144 | nc 192.168.77.1 7777
echo \"sent with status $?\"
mkdir -p /etc/dropbear
echo root:x:0:0::/root:/bin/sh > /etc/passwd
dropbear -F -E -R -s -p 192.168.77.2:22 &
until grep -q ':0016 ' /proc/net/tcp; do sleep 0.1; done
echo \"ssh is open\"
for turn in $(seq 300); do [ -e /tmp/greeted ] && break; sleep 0.1; done
while grep -q '0016 [0-9A-F:]* 01 ' /proc/net/tcp; do sleep 0.1; done
sleep 1
ip link set eth0 down
echo \"packets sent: $(cat /sys/class/net/eth0/statistics/tx_packets)\"
echo \"packets received: $(cat /sys/class/net/eth0/statistics/rx_packets)\"
echo \"random bytes: $(head -c 300 /dev/hwrng | wc -c)\"
echo hello from the guest | sockets send 78
echo hello | sockets send 79
sockets echo 22
";

/// What passt offers is what its host has: the address, and the gateway, by which the guest reaches the host itself.
const PASST_GUEST_SCRIPT: &str = r#"
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
cat > /tmp/lease << 'END'
#!/bin/sh
[ "$1" = bound ] || exit 0
echo "leased $ip/$mask behind $router"
ip addr add $ip/$mask dev $interface
ip route add default via $router
END
chmod 755 /tmp/lease
ip link set eth0 up
udhcpc -i eth0 -s /tmp/lease -n -q
yes strata | head -c 262144 | nc 192.168.77.254 7778
echo "sent with status $?"
"#;

/// Runs with a network of its own, whose tap is what passt sees of a network, and with a root of its own, which passt
/// can leave: it cannot leave the one that a kernel begins with. As root it becomes the user `nobody`.
const PASST_SCRIPT: &str = r#"
ip link set lo up
busybox tunctl -t strata7
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
ip route add default via 192.168.77.254 dev strata7
sleep 300 | busybox nc -l -p 7778 > "$LAB_OUT/received-by-passt" &
own=/tmp/own
mkdir $own
mount -t tmpfs own $own
for path in /*; do
    if [ -L "$path" ]; then
        cp -a "$path" $own/
    elif [ -d "$path" ] && [ "$path" != /etc ]; then
        mkdir "$own$path" && mount -o rbind "$path" "$own$path"
    fi
done
mkdir $own/etc
echo 'nobody:x:65534:65534::/:/bin/false' > $own/etc/passwd
[ -e $own/lib64 ] || { mkdir $own/lib64 && ln -s "$LAB/ld-linux-x86-64.so.2" $own/lib64/; }
cd $own
mount -o move . /
exec chroot . sh -c '
    LD_LIBRARY_PATH=$LAB timeout -s KILL 120 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" \
        --memory 512M --cpus 2 --net passt --agent "$LAB/strata.ko" --trace "$LAB_OUT/passt.trace" \
        --events "default,guest-kernel:net:*,guest-kernel:napi:*" --sub-buffers 64 \
        --cmdline "console=ttyS0 quiet panic=-1 lab.script=passt" < /dev/null > "$LAB_OUT/passt.log" 2>&1
    echo $? > "$LAB_OUT/passt.status"'
"#;

/// `@MODULES@` and `@PASST@` are filled in.
const HOST_SCRIPT: &str = r#"
for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata7 || exit 1
trap 'busybox tunctl -d strata7' EXIT
echo 1 > /proc/sys/net/ipv6/conf/strata7/disable_ipv6
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
vm() {
    strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 "$@" < /dev/null
}
vm --net tap=strata-none > "$LAB_OUT/missing.log" 2>&1
# Its own input stays open: an end of that would end the connection.
sleep 300 | busybox nc -l -p 7777 > "$LAB_OUT/received" &
mkdir -m 700 /tmp/sockets
sockets serve /tmp/sockets/vsock_78 > "$LAB_OUT/served" &
vm --net tap=strata7,mac=52:54:00:12:34:56 --vsock cid=3,path=/tmp/sockets/vsock \
    --rng --balloon --agent "$LAB/strata.ko" --trace "$LAB_OUT/network.trace" \
    --events 'default,guest-kernel:net:*,guest-kernel:napi:*,host-kernel:net:*' --sub-buffers 64 \
    --cmdline "console=ttyS0 quiet panic=-1 lab.script=network" > "$LAB_OUT/network.log" 2>&1 &
guest=$!
(sleep 260; kill -KILL $guest) &
limit=$!
says() { until grep -q "$1" "$LAB_OUT/network.log" || ! kill -0 $guest; do sleep 0.2; done; }
says 'free before the balloon'
process=$(strata ctl vm0 status --json | grep -m 1 '"pid"' | tr -dc 0-9)
resident_kib() { grep RssAnon: /proc/$process/status | tr -dc 0-9; }
resident() { echo "$1 $(resident_kib)" >> "$LAB_OUT/resident"; }
before=$(resident_kib)
resident before
for turn in $(seq 10); do
    strata ctl vm0 balloon 48M --json > "$LAB_OUT/inflated.json"
    grep -q '"given": 50331648' "$LAB_OUT/inflated.json" && break
done
resident inflated
says 'free with the balloon'
for turn in $(seq 10); do
    strata ctl vm0 balloon 0 --json > "$LAB_OUT/deflated.json"
    grep -q '"given": 0,' "$LAB_OUT/deflated.json" && break
done
says 'guest is up'
strata ctl vm0 balloon
vm --name vm1 --net tap=strata7 > "$LAB_OUT/busy.log" 2>&1
says 'ssh is open'
[ -e /lib64 ] || { mkdir /lib64 && ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/; }
LD_LIBRARY_PATH=$LAB timeout -s KILL 25 dbclient -y -y -i "$LAB/ssh-key" root@192.168.77.2 'whoami; cat /proc/cmdline; touch /tmp/greeted' \
    < /dev/null > "$LAB_OUT/by-ssh" 2> "$LAB_OUT/ssh.log"
says 'port 22 is open'
# The guest waits for the call. It reports what is free bit by bit, every two seconds.
for turn in $(seq 60); do [ $(resident_kib) -lt $((before - 65536)) ] && break; sleep 0.5; done
resident reported
yes vsock | head -c 524288 | sockets call /tmp/sockets/vsock 22 > "$LAB_OUT/given-back"
wait $guest
echo $? > "$LAB_OUT/network.status"
kill $limit
ip link show > "$LAB_OUT/links"
ls /tmp/sockets > "$LAB_OUT/sockets"
tail -n 12 "$LAB_OUT/network.log"
cat > /tmp/passt.sh << 'PASST'
@PASST@
PASST
unshare -m -n sh /tmp/passt.sh
tail -n 12 "$LAB_OUT/passt.log"
exit 0
"#;

/// Runs the guest once for all tests of one test run.
///
/// # Errors
///
/// A line that says why there are no results; the same for every test of the run.
pub fn once_per_test_run(paths: &Paths) -> Result<HostResult, String> {
    scenarios::once(paths, "network", run)
}

/// Runs the guest in the run folder `name`.
///
/// # Errors
///
/// When a module is missing, the guest image cannot be made or the host fails; what the guest does is for the caller to
/// judge.
pub fn run(lab: &Lab, name: &str) -> Result<HostResult, ScenarioError> {
    tools::install(&lab.paths, &TOOLS)?;
    let key = lab.paths.images().join("ssh-key");
    let mut make_key = Command::new("sh");
    process::run_logged(make_key.args(["-c", MAKE_KEY, "sh"]).arg(&key), &lab.paths.logs().join("ssh-key.log"))?;
    let dropbear = process::find_program(SSH_SERVER).unwrap_or_else(|| SSH_SERVER.into());
    let modules = ModuleTree::open(&lab.kernels.modules)?;
    let sockets = binaries::build_example(&lab.paths, Purpose::Test, "sockets")?;
    let image = lab.paths.images().join("network.cpio");
    let guest = GuestImage::new(&lab.kernels.busybox, &modules.closure(&GUEST_MODULES)?);
    let guest = guest.program("sockets", &sockets).script("network", GUEST_SCRIPT);
    let guest = guest.file("root/.ssh/authorized_keys", &key.with_extension("pub"));
    let guest = shared_objects::of(std::slice::from_ref(&dropbear))?
        .iter()
        .fold(guest.program(SSH_SERVER, &dropbear), |guest, path| guest.file(&path.display().to_string(), path));
    guest.script("passt", PASST_GUEST_SCRIPT).write_file(&image)?;
    let of_host = scenarios::host_modules(lab, &[HOST_MODULE])?;
    let names: Vec<&str> = of_host.iter().map(|(name, _)| name.as_str()).collect();
    let script = HOST_SCRIPT.replace("@MODULES@", &names.join(" ")).replace("@PASST@", PASST_SCRIPT.trim());
    let request = HostRun::new(name, &script)
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("sockets", &sockets)
        .file("ssh-key", &key)
        .file("strata.ko", &lab.agent);
    let mut request = of_host.iter().fold(request, |request, (name, path)| request.file(name, path));
    request.files.extend(shared_objects::with_program(TOOLS[0].program)?);
    request.files.extend(shared_objects::with_program(TOOLS[1].program)?);
    request.timeout = Duration::from_secs(580);
    Ok(lab.host.run(&lab.paths.runs(), &request)?.success(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_do_what_the_constants_say() {
        assert!(GUEST_SCRIPT.contains(&format!("ping -c {PINGS} ")));
        assert!([GUEST_SCRIPT, PASST_GUEST_SCRIPT].iter().all(|script| script.contains(&format!("head -c {SENT} "))));
        assert!(GUEST_SCRIPT.contains(&format!("head -c {RANDOM} ")));
        assert!(HOST_SCRIPT.contains(&format!("head -c {GIVEN_BACK} ")));
        assert!(GUEST_SCRIPT.contains(&format!("seq {PIECES})")));
        assert!(HOST_SCRIPT.contains(&format!("before - {}))", (PIECES << 10) / 2)));
        assert!(HOST_SCRIPT.contains(&format!("balloon {WANTED}M ")));
        assert!(HOST_SCRIPT.contains(&format!("\"given\": {}'", WANTED << 20)));
    }
}
