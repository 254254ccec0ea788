//! This process and the machine as it sees them: CPUs, its OOM score, its resource use, the programs that it runs.
//! May read `/proc` and `/sys`, write `/proc/self/oom_score_adj`, raise its limit on open files, run programs, and
//! start this one over.

mod again;
mod child;
mod memory;

pub use again::{StandIn, is_stand_in, reap_stand_in, replace, stand_in};
pub use child::{Attend, Limits, Ran, RunError, Unattended, end_children, run};
pub use memory::{release_free_memory, release_program_pages, return_large_buffers};

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Something about this process could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of `/proc` could not be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file of `/proc` does not look as documented.
    #[error("can't make sense of {path}")]
    Malformed {
        /// The file.
        path: &'static str,
    },
    /// The OOM score could not be set.
    #[error("can't set the OOM score adjustment to {value}: {source}")]
    OomScore {
        /// The wanted adjustment.
        value: i32,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Sets `/proc/self/oom_score_adj`, trying twice as the kernel may refuse for a moment.
pub fn set_oom_score_adj(value: i32) -> Result<(), Error> {
    let write = || std::fs::write("/proc/self/oom_score_adj", value.to_string());
    write()
        .or_else(|_| {
            std::thread::sleep(Duration::from_millis(100));
            write()
        })
        .map_err(|source| Error::OomScore { value, source })
}

/// Allows as many open files as may be allowed without further rights, as Go's runtime does, and tells how many these
/// are. Programs that are started inherit the limit.
pub fn raise_open_files_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let in_force = if setrlimit(Resource::Nofile, raised).is_ok() {
        limit.maximum
    } else {
        limit.current
    };
    in_force.unwrap_or(u64::MAX)
}

/// The machine's online CPUs: those of the NUMA nodes below `/sys/devices/system`, else those listed there directly,
/// else what the scheduler gives this process. Quotas and affinity do not count: the connection table is the
/// machine's.
pub fn online_cpus() -> usize {
    online_cpus_below(Path::new("/sys/devices/system"))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

fn online_cpus_below(root: &Path) -> Option<usize> {
    let in_nodes: usize = numbered(&root.join("node"), "node")
        .iter()
        .map(|node| count_online(node))
        .sum();
    [in_nodes, count_online(&root.join("cpu"))]
        .into_iter()
        .find(|&count| count > 0)
}

fn count_online(dir: &Path) -> usize {
    numbered(dir, "cpu")
        .iter()
        // CPUs that cannot be taken offline have no such file.
        .filter(|cpu| std::fs::read_to_string(cpu.join("online")).map_or(true, |text| text.trim() != "0"))
        .count()
}

/// The entries of `dir` named `<prefix><digits>`.
fn numbered(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_prefix(prefix));
            digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|entry| entry.path())
        .collect()
}

/// Whether this process may change interfaces, addresses and rules of its network namespace.
pub fn may_administer_network() -> bool {
    const CAP_NET_ADMIN: u32 = 12;
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_capability(&status, CAP_NET_ADMIN))
}

fn has_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << number) != 0)
}

/// What this process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// User and system CPU time.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Virtual memory in bytes.
    pub virtual_memory: u64,
    /// The limit on it.
    pub max_virtual_memory: u64,
    /// Bytes that came in over the network namespace's interfaces.
    pub received: u64,
    /// Bytes that went out.
    pub transmitted: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The limit on them.
    pub max_files: u64,
    /// When it started, since the epoch.
    pub started: Duration,
}

/// Clock ticks per second in `/proc`: 100 on every architecture that Linux still supports.
const TICKS: u64 = 100;

/// Reads this process's resource use.
pub fn usage() -> Result<Usage, Error> {
    let stat = read("/proc/self/stat")?;
    // The command's name may hold spaces and parentheses; after its last ')' come the state and plain numbers.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    // proc(5) counts from 1 with the state as field 3.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let (Some(user), Some(system), Some(start)) = (field(14), field(15), field(22)) else {
        return Err(Error::Malformed {
            path: "/proc/self/stat",
        });
    };
    let status = read("/proc/self/status")?;
    let limit = |resource| {
        let limit = rustix::process::getrlimit(resource);
        limit.current.unwrap_or(u64::MAX)
    };
    // Missing where /proc/net is restricted.
    let (received, transmitted) = std::fs::read_to_string("/proc/self/net/netstat")
        .ok()
        .and_then(|netstat| octets(&netstat))
        .unwrap_or_default();
    Ok(Usage {
        cpu: ticks(user + system),
        resident: kilobytes(&status, "VmRSS:"),
        virtual_memory: kilobytes(&status, "VmSize:"),
        max_virtual_memory: limit(rustix::process::Resource::As),
        received,
        transmitted,
        open_files: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
        max_files: limit(rustix::process::Resource::Nofile),
        started: boot_time()? + ticks(start),
    })
}

/// The columns `InOctets` and `OutOctets` of the lines `IpExt:`, of which the first holds the names and the second the
/// numbers.
fn octets(netstat: &str) -> Option<(u64, u64)> {
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let column = |name: &str| {
        let index = names.split_whitespace().position(|found| found == name)?;
        numbers.split_whitespace().nth(index)?.parse().ok()
    };
    Some((column("InOctets")?, column("OutOctets")?))
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(1000) / TICKS)
}

/// A line such as `VmRSS:  1234 kB`, in bytes.
fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

fn boot_time() -> Result<Duration, Error> {
    let stat = read("/proc/stat")?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
        .map(Duration::from_secs)
        .ok_or(Error::Malformed { path: "/proc/stat" })
}

fn read(path: &'static str) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_plausible() {
        let usage = usage().unwrap();
        assert!(usage.resident > 100_000, "{usage:?}");
        assert!(usage.virtual_memory >= usage.resident, "{usage:?}");
        assert!(usage.max_virtual_memory >= usage.virtual_memory, "{usage:?}");
        assert!(usage.open_files >= 3, "{usage:?}");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(usage.started <= now + Duration::from_secs(2), "{usage:?}");
        assert!(usage.started + Duration::from_secs(86_400) > now, "{usage:?}");
    }

    #[test]
    fn bytes_are_found_by_the_names_of_their_columns() {
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 7 8 9\n";
        assert_eq!(octets(netstat), Some((8, 9)));
        assert_eq!(octets("IpExt: InOctets\nIpExt: 1\n"), None);
        assert_eq!(octets(""), None);
    }

    #[test]
    fn cpus_are_counted_by_numa_node_first_and_only_when_online() {
        let dir = tempfile::tempdir().unwrap();
        let cpu = |path: &str, online: Option<&str>| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            if let Some(text) = online {
                std::fs::write(path.join("online"), text).unwrap();
            }
        };
        cpu("cpu/cpu0", None);
        cpu("cpu/cpu1", Some("1\n"));
        cpu("cpu/cpu2", Some("0\n"));
        cpu("cpu/cpufreq", None);
        assert_eq!(online_cpus_below(dir.path()), Some(2));
        cpu("node/node0/cpu0", None);
        cpu("node/node1/cpu1", Some("1\n"));
        cpu("node/node1/cpu2", Some("1\n"));
        assert_eq!(online_cpus_below(dir.path()), Some(3));
        assert_eq!(online_cpus_below(&dir.path().join("nothing")), None);
        assert!(online_cpus() >= 1);
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = |bits: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{bits}\n");
        assert!(has_capability(&status("0000000000001000"), 12));
        assert!(
            !has_capability(&status("00000000a80405fb"), 12),
            "what containers have by default"
        );
        assert!(!has_capability("Name:\tx\n", 12));
    }

    #[test]
    fn the_oom_score_of_this_process_can_be_raised() {
        // Raising needs no privilege; the test process is short-lived.
        let before: i32 = std::fs::read_to_string("/proc/self/oom_score_adj")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let wanted = (before + 1).min(1000);
        set_oom_score_adj(wanted).unwrap();
        let after: i32 = std::fs::read_to_string("/proc/self/oom_score_adj")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_eq!(after, wanted);
    }
}
