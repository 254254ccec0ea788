//! What runs inside the guest before and after the command: pure text.

use super::packages::Kernel;
use std::fmt::Write;
use std::path::Path;

/// Variables that reach the command.
const PASSED: &[&str] = &["RUST_LOG", "RUST_BACKTRACE", "RUST_TEST_THREADS", "ORACLE_SLOW"];

/// The guest's first process. Mounts by static busybox only: binaries of the host would be read through the share, and
/// under emulation that costs seconds. VM_CTL comes from the user-mode kernel's command line; under QEMU it is unset and
/// shares are named by tags. `/tmp` is fresh memory before the working tree is shared, which may lie below it.
pub(super) const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mkdir -p /proc /low /up /new; mount -t proc proc /proc
for m in virtio_pci virtio_console 9pnet_virtio 9p overlay; do modprobe -q $m; done
share() { # share TAG PATH MOUNTPOINT 9P-OPTIONS
  if [ -n "$VM_CTL" ]; then mount -t hostfs -o "$2" "$1" "$3"
  else mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$4" "$1" "$3"; fi
}
share host / /low ro,cache=loose && mount -t tmpfs up /up && mkdir /up/u /up/w &&
mount -t overlay -o lowerdir=/low,upperdir=/up/u,workdir=/up/w root /new &&
mount -t tmpfs tmp /new/tmp && chmod 1777 /new/tmp && mkdir -p /new/ctl /new/lib/modules && share ctl "$VM_CTL" /new/ctl rw && . /new/ctl/vars &&
mkdir -p "/new$work" && share work "$work" "/new$work" cache=mmap || poweroff -f
cd /new; mount --bind ".$cache/lib/modules" lib/modules
mount -t proc proc proc; mount -t sysfs sys sys; mount -t devtmpfs dev dev; mount -t tmpfs run run
mount -t bpf bpf sys/fs/bpf; mount -t cgroup2 cgroup sys/fs/cgroup
mkdir -p dev/pts dev/shm run/lock run/netns run/legacy; ln -s /proc/self/fd dev/fd
mount -t devpts pts dev/pts; mount -t tmpfs shm dev/shm
for t in iptables ip6tables; do for x in "" -save -restore; do
  ln -s /usr/sbin/xtables-legacy-multi run/legacy/$t$x
done; done
echo "$cache/modprobe" >/proc/sys/kernel/modprobe
hostname vm; ip link set lo up
exec switch_root /new /bin/bash /ctl/run
"#;

/// Which kind of iptables the command finds first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Iptables {
    /// What the machine's alternatives say.
    Debian,
    /// The older kind, for a kernel without nf_tables.
    Legacy,
}

/// Where every guest has the older kind of iptables under the plain names.
pub(super) const LEGACY: &str = "/run/legacy";

/// What `/ctl/vars` holds: where the two shared directories are.
pub(super) fn vars(work: &Path, kernel: &Kernel) -> String {
    format!("work={}\ncache={}\n", quoted(work), quoted(&kernel.dir))
}

/// What `/ctl/run` holds: the command with its outputs on two ports, its exit code in a file, then power off.
pub(super) fn script(
    command: &[String],
    iptables: Iptables,
    environment: impl Fn(&str) -> Option<String>,
) -> String {
    let first = match iptables {
        Iptables::Debian => String::new(),
        Iptables::Legacy => format!("{LEGACY}:"),
    };
    let mut text = format!(
        "export PATH={first}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb\n",
    );
    for name in PASSED {
        if let Some(value) = environment(name) {
            let _ = writeln!(text, "export {name}={}", quote(&value));
        }
    }
    let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
    let _ = write!(
        text,
        ". /ctl/vars; PATH=$cache:$PATH; cd \"$work\"; out=(/dev/vport*p1) err=(/dev/vport*p2)\n\
         modprobe -q ipv6\n\
         [ -e $out ] || {{ out=/dev/ttyS0 err=/dev/ttyS1; for t in $out $err; do stty -F $t raw; done; }}\n\
         ({}) </dev/null >$out 2>$err\n\
         echo $? >/ctl/rc; sync; exec \"$cache/busybox\" poweroff -f\n",
        words.join(" ")
    );
    text
}

fn quoted(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guest_unchanged() {
        let command = ["printf".to_owned(), "it's $HOME; \"x\"\n".to_owned()];
        let text = script(&command, Iptables::Debian, |_| None);
        assert!(
            text.contains("('printf' 'it'\\''s $HOME; \"x\"\n') </dev/null"),
            "{text}"
        );
    }

    #[test]
    fn only_named_variables_are_passed() {
        let text = script(&["true".to_owned()], Iptables::Debian, |name| {
            (name == "RUST_LOG").then(|| "a b".to_owned())
        });
        assert!(text.contains("export RUST_LOG='a b'\n"));
        assert!(!text.contains("RUST_BACKTRACE"));
    }

    #[test]
    fn the_older_iptables_comes_first_where_it_must() {
        let path = |iptables| script(&["true".to_owned()], iptables, |_| None);
        assert!(path(Iptables::Legacy).starts_with("export PATH=/run/legacy:/usr/local/sbin:"));
        assert!(path(Iptables::Debian).starts_with("export PATH=/usr/local/sbin:"));
    }
}
