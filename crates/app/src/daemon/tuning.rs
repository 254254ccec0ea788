//! Kernel parameters for connection tracking, set before anything is served.

use std::time::Duration;

use ferry_host::sysctl::{Ensured, Error, Sysctls};

use crate::config::Conntrack;

/// Never more than this many tracked connections, whatever the machine.
const MOST: i64 = 1_048_576;

/// Makes the parameters what the configuration wants; writes only what differs.
pub(super) fn tune_conntrack(sysctls: &Sysctls, wanted: &Conntrack, cpus: usize) -> Result<(), Error> {
    if let Some(max) = conntrack_max(wanted, cpus) {
        set(sysctls, "nf_conntrack_max", max)?;
        grow_table(sysctls, max / 4)?;
    }
    let seconds = [
        (
            "nf_conntrack_tcp_timeout_established",
            wanted.tcp_established_timeout,
        ),
        (
            "nf_conntrack_tcp_timeout_close_wait",
            wanted.tcp_close_wait_timeout,
        ),
    ];
    set_seconds(sysctls, &seconds)?;
    if wanted.tcp_be_liberal {
        set(sysctls, "nf_conntrack_tcp_be_liberal", 1)?;
    }
    let seconds = [
        ("nf_conntrack_udp_timeout", wanted.udp_timeout),
        ("nf_conntrack_udp_timeout_stream", wanted.udp_stream_timeout),
    ];
    set_seconds(sysctls, &seconds)
}

/// The cap comes before the minimum, as in kube-proxy: a minimum above the cap does not count.
fn conntrack_max(wanted: &Conntrack, cpus: usize) -> Option<i64> {
    if wanted.max_per_core == 0 {
        return None;
    }
    let scaled = i64::from(wanted.max_per_core) * cpus as i64;
    Some(if scaled > MOST {
        MOST
    } else {
        scaled.max(i64::from(wanted.min))
    })
}

/// A table that is too small for its entries makes each lookup slow. It is never made smaller.
fn grow_table(sysctls: &Sysctls, buckets: i64) -> Result<(), Error> {
    if sysctls.module_parameter("nf_conntrack", "hashsize")? < buckets {
        sysctls.ensure_module_parameter("nf_conntrack", "hashsize", buckets)?;
        tracing::info!(hashsize = buckets, "Set conntrack hash size");
    }
    Ok(())
}

fn set_seconds(sysctls: &Sysctls, wanted: &[(&str, Duration)]) -> Result<(), Error> {
    for (name, duration) in wanted {
        if !duration.is_zero() {
            set(
                sysctls,
                name,
                i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            )?;
        }
    }
    Ok(())
}

fn set(sysctls: &Sysctls, name: &str, value: i64) -> Result<(), Error> {
    let name = format!("net/netfilter/{name}");
    if let Ensured::Changed { from } = sysctls.ensure(&name, value)? {
        tracing::info!(entry = name, value, from, "Set sysctl");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Conntrack {
        Conntrack {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_timeout: Duration::from_millis(86_400_900),
            tcp_close_wait_timeout: Duration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }

    const FILES: [&str; 6] = [
        "nf_conntrack_max",
        "nf_conntrack_tcp_timeout_established",
        "nf_conntrack_tcp_timeout_close_wait",
        "nf_conntrack_tcp_be_liberal",
        "nf_conntrack_udp_timeout",
        "nf_conntrack_udp_timeout_stream",
    ];

    /// Runs the tuning on stand-in files that all hold 0 and tells what they hold afterwards; the last is the
    /// hash size, which begins with the given value.
    fn tuned(wanted: &Conntrack, cpus: usize, hashsize: i64) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let netfilter = dir.path().join("proc/net/netfilter");
        let parameters = dir.path().join("module/nf_conntrack/parameters");
        std::fs::create_dir_all(&netfilter).unwrap();
        std::fs::create_dir_all(&parameters).unwrap();
        for file in FILES {
            std::fs::write(netfilter.join(file), "0\n").unwrap();
        }
        std::fs::write(parameters.join("hashsize"), format!("{hashsize}\n")).unwrap();
        let sysctls = Sysctls::rooted(dir.path().join("proc"), dir.path().join("module"));
        tune_conntrack(&sysctls, wanted, cpus).unwrap();
        let paths = FILES
            .iter()
            .map(|file| netfilter.join(file))
            .chain([parameters.join("hashsize")]);
        paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn defaults_on_a_small_and_a_large_machine() {
        let small = tuned(&wanted(), 2, 1);
        assert_eq!(small, ["131072", "86400", "3600", "0\n", "0\n", "0\n", "32768"]);
        let large = tuned(&wanted(), 16, 200_000);
        assert_eq!(large[0], "524288");
        assert_eq!(large[6], "200000\n", "a larger table stays");
    }

    #[test]
    fn the_cap_beats_the_minimum() {
        let huge_min = Conntrack {
            min: 9_000_000,
            ..wanted()
        };
        assert_eq!(tuned(&huge_min, 64, 1)[0], "1048576");
        assert_eq!(
            tuned(&huge_min, 1, 1)[0],
            "9000000",
            "kube-proxy's rule: only the scaled value is capped"
        );
    }

    #[test]
    fn zero_leaves_things_alone_and_liberal_is_only_ever_switched_on() {
        let nothing = Conntrack {
            max_per_core: 0,
            tcp_established_timeout: Duration::ZERO,
            tcp_close_wait_timeout: Duration::ZERO,
            ..wanted()
        };
        assert_eq!(
            tuned(&nothing, 4, 1),
            ["0\n", "0\n", "0\n", "0\n", "0\n", "0\n", "1\n"]
        );
        let all = Conntrack {
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(30),
            udp_stream_timeout: Duration::from_secs(120),
            ..nothing
        };
        assert_eq!(tuned(&all, 4, 1)[3..6], ["1", "30", "120"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let sysctls = Sysctls::rooted(dir.path(), dir.path());
        let error = tune_conntrack(&sysctls, &wanted(), 1).unwrap_err().to_string();
        assert!(error.contains("net/netfilter/nf_conntrack_max"), "{error}");
    }
}
