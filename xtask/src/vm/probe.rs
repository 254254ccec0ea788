//! Whether the user-mode kernel runs on this machine: it is booted, and asked to run one program.
//!
//! Nothing less tells. Where the processor's extended state is larger than that kernel's buffer for it (AMX: Sapphire
//! Rapids and later) it boots and then panics at its first process; elsewhere ptrace may be forbidden.

use super::engine::{self, Ended, Machine};
use anyhow::Result;
use std::time::{Duration, Instant};

/// It takes two seconds on a quiet machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Verdict {
    /// It does, and took this long to boot and go.
    Runs(Duration),
    /// It does not, for this reason.
    Fails(String),
}

pub(super) fn user_mode(machine: Machine) -> Result<Verdict> {
    let machine = Machine {
        timeout: BOOT_TIMEOUT.min(machine.timeout),
        ..machine
    };
    let begun = Instant::now();
    let (how, console) = match engine::attempt(&machine, &std::env::temp_dir(), &["true".to_owned()])? {
        Ended::Command(0) => return Ok(Verdict::Runs(begun.elapsed())),
        Ended::Command(code) => return Ok(Verdict::Fails(format!("`true` ended with code {code}"))),
        Ended::OutOfTime(console) => (format!("no answer in {} s", machine.timeout.as_secs()), console),
        Ended::Died(status, console) => (format!("it ended with {status}"), console),
    };
    let said = console.gist().map(|line| format!(", saying {line:?}"));
    Ok(Verdict::Fails(how + said.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::packages::Kernel;
    use super::*;

    /// What is said of a user-mode kernel that is this shell script.
    fn verdict(script: &str, timeout: Duration) -> Verdict {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("kernel");
        std::fs::write(
            &kernel,
            format!("#!/bin/sh\nfor a; do case $a in VM_CTL=*) ctl=${{a#*=}};; esac; done\n{script}\n"),
        )
        .unwrap();
        std::fs::set_permissions(&kernel, std::fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Machine {
            kernel: Kernel {
                dir: dir.path().to_owned(),
                version: "test".to_owned(),
            },
            emulator: None,
            memory: 64,
            timeout,
            verbose: false,
            label: None,
        };
        user_mode(machine).unwrap()
    }

    fn reason(script: &str, timeout: Duration) -> String {
        match verdict(script, timeout) {
            Verdict::Fails(why) => why,
            Verdict::Runs(_) => panic!("{script:?} was taken for a kernel that runs"),
        }
    }

    #[test]
    fn a_kernel_that_runs_a_program_runs() {
        let verdict = verdict("echo 0 >\"$ctl/rc\"", BOOT_TIMEOUT);
        assert!(matches!(verdict, Verdict::Runs(_)), "{verdict:?}");
    }

    #[test]
    fn a_kernel_that_panics_is_told_with_its_words() {
        let script =
            "echo booting; echo 'Kernel panic - not syncing: put_fp_registers failed'; echo EIP: 0; exit 134";
        let why = reason(script, BOOT_TIMEOUT);
        assert!(
            why.contains("134") && why.contains("put_fp_registers failed"),
            "{why}"
        );
    }

    #[test]
    fn a_kernel_that_hangs_is_given_up_with_its_processes() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("left");
        // as the real one: it leads a group of its own, with children that would outlive it
        let script = format!(
            "exec setsid sh -c '(sleep 3; echo >{}) & echo waiting for nothing; wait'",
            left.display()
        );
        let why = reason(&script, Duration::from_millis(500));
        assert!(
            why.contains("no answer") && why.contains("waiting for nothing"),
            "{why}"
        );
        std::thread::sleep(Duration::from_secs(4));
        assert!(!left.exists(), "its child lived on");
    }

    #[test]
    fn a_program_that_fails_in_the_guest_is_no_success() {
        assert!(reason("echo 127 >\"$ctl/rc\"", BOOT_TIMEOUT).contains("code 127"));
    }
}
