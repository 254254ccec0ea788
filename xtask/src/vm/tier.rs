//! The tier itself: build the programs that need another kernel, run them in guests, one verdict.

use super::engine::{self, Machine};
use super::guest::{self, Iptables, LEGACY};
use crate::shell;
use anyhow::{Context, Result, ensure};
use std::time::Instant;
use tempfile::TempDir;

/// The package whose program holds the tier's cases.
const PACKAGE: &str = "ferry-vm-tests";

/// Many hosts in one process need many files. Programs are started dozens of times, so they are read through the share
/// once and then run from memory. Waits are made for real machines; an emulated one gets more patience.
const START: &str = "ulimit -n 65536; cp \"$0\" \"$1\" /tmp/ || exit; export FERRY_LAB_SLOW=4; code=0\n";

/// The guests of one run of the tier.
#[derive(Debug)]
pub(super) struct Tier {
    guests: Vec<Guest>,
    /// Where guests that share cases mark what they have taken.
    claims: Option<TempDir>,
}

/// A guest, and the runs of the tier's program that it makes one after the other.
#[derive(Debug)]
struct Guest {
    machine: Machine,
    runs: Vec<Run>,
}

/// One run of the tier's program.
#[derive(Debug)]
struct Run {
    iptables: Iptables,
    args: Vec<String>,
}

impl Run {
    /// What of the tier needs nf_tables, or has the newer kind of iptables.
    fn nf_tables() -> Run {
        Run {
            iptables: Iptables::Debian,
            args: vec!["--share".to_owned(), "nf-tables".to_owned()],
        }
    }

    /// What has the older kind of iptables.
    fn legacy() -> Run {
        Run {
            iptables: Iptables::Legacy,
            args: vec!["--share".to_owned(), "legacy".to_owned()],
        }
    }

    /// The same, leaving out what another guest has marked there as taken.
    fn sharing(mut self, claims: &TempDir) -> Run {
        self.args.extend([
            "--claims".to_owned(),
            claims.path().to_string_lossy().into_owned(),
        ]);
        self
    }

    /// The shell's words for it; a failure is kept in mind.
    fn line(&self) -> String {
        let path = match self.iptables {
            Iptables::Debian => String::new(),
            Iptables::Legacy => format!("PATH={LEGACY}:$PATH "),
        };
        let args: Vec<String> = self.args.iter().map(|arg| guest::quote(arg)).collect();
        format!("{path}/tmp/{PACKAGE} {} || code=$?\n", args.join(" "))
    }
}

impl Guest {
    /// Its output is marked with the label.
    fn new(machine: Machine, label: &str, runs: Vec<Run>) -> Guest {
        let label = Some(label.to_owned());
        Guest {
            machine: Machine { label, ..machine },
            runs,
        }
    }
}

/// Each engine does what it is best at.
pub(super) fn beside_user_mode(stock: Machine, user_mode: Machine) -> Tier {
    Tier {
        guests: vec![
            Guest::new(stock, "stock", vec![Run::nf_tables()]),
            Guest::new(user_mode, "user-mode", vec![Run::legacy()]),
        ],
        claims: None,
    }
}

/// Two emulated guests: the first one helps the second when it is done with what needs nf_tables.
pub(super) fn emulated(first: Machine, second: Machine) -> Result<Tier> {
    // below the directory that guests may write to
    let parent = shell::root().join("target/vm");
    std::fs::create_dir_all(&parent)?;
    let claims = tempfile::Builder::new().prefix("claims-").tempdir_in(parent)?;
    let both = vec![Run::nf_tables(), Run::legacy().sharing(&claims)];
    Ok(Tier {
        guests: vec![
            Guest::new(first, "first", both),
            Guest::new(second, "second", vec![Run::legacy().sharing(&claims)]),
        ],
        claims: Some(claims),
    })
}

/// A guest with every case whose name contains the filter.
pub(super) fn named(machine: Machine, filter: Option<&str>) -> Tier {
    let run = Run {
        iptables: Iptables::Debian,
        args: filter.map(str::to_owned).into_iter().collect(),
    };
    Tier {
        guests: vec![Guest {
            machine,
            runs: vec![run],
        }],
        claims: None,
    }
}

/// Runs all guests at once: each keeps one processor busy.
pub(super) fn run(tier: Tier) -> Result<()> {
    shell::run(shell::cargo().args(["build", "--workspace", "--bin", PACKAGE, "--bin", "ferry"]))?;
    let results: Vec<Result<bool>> = std::thread::scope(|scope| {
        let guests: Vec<_> = tier
            .guests
            .iter()
            .map(|guest| scope.spawn(|| run_one(guest)))
            .collect();
        let join = |guest: std::thread::ScopedJoinHandle<'_, Result<bool>>| {
            guest
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        guests.into_iter().map(join).collect()
    });
    if let Some(claims) = tier.claims {
        claims.close()?;
    }
    let mut passed = true;
    for result in results {
        passed &= result?;
    }
    ensure!(passed, "the VM tier failed");
    Ok(())
}

fn run_one(guest: &Guest) -> Result<bool> {
    let built = |name: &str| {
        shell::target_dir()
            .join("debug")
            .join(name)
            .to_string_lossy()
            .into_owned()
    };
    let runs: String = guest.runs.iter().map(Run::line).collect();
    let script = format!("{START}{runs}exit $code");
    let command = ["sh", "-c", &script, &built("ferry"), &built(PACKAGE)].map(str::to_owned);
    let begun = Instant::now();
    let version = &guest.machine.kernel.version;
    let code = engine::run(&guest.machine, &shell::root(), &command).with_context(|| version.clone())?;
    let verdict = if code == 0 { "passed" } else { "FAILED" };
    println!(
        "vm: {verdict} under kernel {version} in {} s",
        begun.elapsed().as_secs()
    );
    Ok(code == 0)
}
