//! One family's programs: which flavour and version they are, what they can do, and running them.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::lock::{self, Holder, LockWait, OwnLock};
use super::{Document, Error, Failure, Ip, Table, Writers, choose};
use crate::process::{self, Attend, Limits, Ran, RunError, Unattended};

/// The largest documents take seconds, on a busy machine tens of seconds; what takes longer than this hangs.
const RESTORE_LIMITS: Limits = Limits {
    time: Duration::from_secs(3 * 60),
    output: 1 << 20,
};
/// A table of fifty thousand services is some hundred megabytes of text.
const SAVE_LIMITS: Limits = Limits {
    time: Duration::from_secs(2 * 60),
    output: 1 << 30,
};
const SHORT_LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    output: 1 << 20,
};
/// How long a program waits for the xtables lock before it gives up, in seconds.
const LOCK_SECONDS: &str = "5";
/// The status by which the programs say "no lock, no memory".
const STATUS_RESOURCE: i32 = 4;

/// Which kernel interface a program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavour {
    /// nf_tables.
    Nft,
    /// The older x_tables.
    Legacy,
}

impl Flavour {
    /// The other one.
    pub fn other(self) -> Flavour {
        match self {
            Flavour::Nft => Flavour::Legacy,
            Flavour::Legacy => Flavour::Nft,
        }
    }

    /// As it stands in program names: `iptables-nft`.
    pub fn as_str(self) -> &'static str {
        match self {
            Flavour::Nft => "nft",
            Flavour::Legacy => "legacy",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A program version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// The first `v1.2[.3]` in this text.
    pub fn parse(text: &str) -> Option<Version> {
        text.match_indices('v').find_map(|(at, _)| {
            let rest = &text[at + 1..];
            let end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(rest.len());
            let mut parts = rest[..end].split('.').map(str::parse);
            let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
            Some(Version(
                major,
                minor,
                parts.next().and_then(Result::ok).unwrap_or(0),
            ))
        })
    }
}

/// How a program can be told to wait for the xtables lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// For ever: `-w`.
    Forever,
    /// For some seconds: `-w 5`.
    Seconds,
}

impl Wait {
    fn args(self) -> &'static [&'static str] {
        match self {
            Wait::No => &[],
            Wait::Forever => &["-w"],
            Wait::Seconds => &["-w", LOCK_SECONDS],
        }
    }
}

/// What a version can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Waiting, for single commands.
    pub wait: Wait,
    /// Waiting, for restore.
    pub restore_wait: Wait,
    /// `MASQUERADE --random-fully`.
    pub random_fully: bool,
}

impl Features {
    /// `restore_versioned`: whether the restore program knows `--version`; older ones that do also know `-w`.
    fn of(version: Version, restore_versioned: bool) -> Features {
        let wait = match version {
            v if v >= Version(1, 4, 22) => Wait::Seconds,
            v if v >= Version(1, 4, 20) => Wait::Forever,
            _ => Wait::No,
        };
        let restore_wait = match version {
            v if v >= Version(1, 6, 2) => Wait::Seconds,
            _ if restore_versioned => Wait::Forever,
            _ => Wait::No,
        };
        Features {
            wait,
            restore_wait,
            random_fully: version >= Version(1, 6, 2),
        }
    }
}

/// One family's programs.
#[derive(Clone, Debug)]
pub struct Iptables {
    ip: Ip,
    program: String,
    flavour: Flavour,
    version: Version,
    features: Features,
    lock: PathBuf,
    writers: Arc<Writers>,
}

/// A restore that worked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Who was waited for, if it was long enough to be noticed.
    pub lock: Option<LockWait>,
}

impl Iptables {
    /// The programs behind the plain names, because that is what everybody else on the node uses; where there are no
    /// such names, as in an image, those of the flavour that the node's rules speak for.
    pub fn detect(ip: Ip, writers: Arc<Writers>) -> Result<Iptables, Error> {
        match Iptables::named(ip, ip.program().to_owned(), Arc::clone(&writers)) {
            Err(missing @ Error::Missing { .. }) => choose::by_rules(ip, &writers).ok_or(missing),
            found => found,
        }
    }

    /// The programs of one flavour by their own names, whatever stands behind the plain ones.
    pub fn of_flavour(ip: Ip, flavour: Flavour, writers: Arc<Writers>) -> Result<Iptables, Error> {
        Iptables::named(ip, format!("{}-{flavour}", ip.program()), writers)
    }

    fn named(ip: Ip, program: String, writers: Arc<Writers>) -> Result<Iptables, Error> {
        let output = first_line(&program)?;
        let version = Version::parse(&output).ok_or_else(|| Error::Version {
            program: program.clone(),
            output: output.clone(),
        })?;
        let flavour = if output.contains("nf_tables") {
            Flavour::Nft
        } else {
            Flavour::Legacy
        };
        let restore_versioned = version >= Version(1, 6, 2)
            || first_line(&format!("{program}-restore")).is_ok_and(|line| Version::parse(&line).is_some());
        let features = Features::of(version, restore_versioned);
        Ok(Iptables {
            ip,
            program,
            flavour,
            version,
            features,
            lock: lock::path(),
            writers,
        })
    }

    /// Uses another lock file than the one the environment names.
    pub fn with_lock(mut self, path: PathBuf) -> Iptables {
        self.lock = path;
        self
    }

    pub fn ip(&self) -> Ip {
        self.ip
    }

    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether the kernel has what NAT needs in this family, and lets us use it; else what the program said.
    pub fn can_do_nat(&self) -> Result<(), String> {
        let mut command = self.command(&self.program);
        command
            .args(self.features.wait.args())
            .args(["-S", "POSTROUTING", "-t", "nat"]);
        match process::run(&mut command, &[], SHORT_LIMITS, &mut Unattended) {
            Ok(ran) if ran.status.success() => Ok(()),
            Ok(ran) => {
                let said = ran.stderr.lines().find(|line| !line.trim().is_empty());
                Err(said.map_or_else(|| ran.status.to_string(), |line| line.trim().to_owned()))
            }
            Err(error) => Err(not_run(&self.program, SHORT_LIMITS, error, None).to_string()),
        }
    }

    /// Does what a document says; chains that it does not name are left alone. Each of its tables is changed whole or
    /// not at all, in the order in which they stand in it.
    pub fn restore<O: Clone + Default + PartialEq>(&self, document: &Document<O>) -> Result<Restored, Error> {
        if document.is_empty() {
            return Ok(Restored::default());
        }
        self.restore_pieces(&document.pieces())
    }

    /// As [`Iptables::restore`], of a document's text in pieces.
    pub fn restore_pieces(&self, document: &[&str]) -> Result<Restored, Error> {
        let program = format!("{}-restore", self.program);
        let _own = match self.features.restore_wait {
            Wait::No => Some(self.own_lock(&program)?),
            Wait::Forever | Wait::Seconds => None,
        };
        let mut command = self.command(&program);
        command
            .args(self.features.restore_wait.args())
            .args(["--noflush", "--counters"]);
        let mut attendant = Attendant {
            tool: self,
            seen: None,
        };
        let result = process::run(&mut command, document, RESTORE_LIMITS, &mut attendant);
        let lock = attendant.seen.map(|seen| LockWait {
            holder: seen.holder,
            held: seen.last - seen.first,
        });
        let ran = result.map_err(|error| not_run(&program, RESTORE_LIMITS, error, lock.clone()))?;
        if ran.status.success() {
            return Ok(Restored { lock });
        }
        if is_lock_problem(&ran) {
            let lock = lock.or_else(|| self.holder_now());
            return Err(Error::Locked { program, lock });
        }
        let failure = Failure::parse(&program, ran.status.to_string(), &ran.stderr, &document.concat());
        Err(Error::Restore(Box::new(failure)))
    }

    /// Every table of this family as save prints it.
    pub fn save(&self) -> Result<String, Error> {
        self.save_with(&[])
    }

    /// One table of this family.
    pub(super) fn save_table(&self, table: Table) -> Result<String, Error> {
        self.save_with(&["-t", table.as_str()])
    }

    fn save_with(&self, args: &[&str]) -> Result<String, Error> {
        let program = format!("{}-save", self.program);
        let mut command = self.command(&program);
        let result = process::run(command.args(args), &[], SAVE_LIMITS, &mut Unattended);
        let ran = result.map_err(|error| not_run(&program, SAVE_LIMITS, error, None))?;
        if !ran.status.success() {
            return Err(Error::Failed {
                command: program,
                status: ran.status.to_string(),
                stderr: ran.stderr,
            });
        }
        Ok(text(ran.stdout))
    }

    /// One chain with its counters, as `-S -v` prints it; `None` if there is no such chain.
    pub fn list(&self, table: Table, chain: &str) -> Result<Option<String>, Error> {
        let mut command = self.command(&self.program);
        command
            .args(self.features.wait.args())
            .args(["-t", table.as_str(), "-v", "-S", chain]);
        let result = process::run(&mut command, &[], SAVE_LIMITS, &mut Unattended);
        let ran = result.map_err(|error| not_run(&self.program, SAVE_LIMITS, error, None))?;
        if ran.status.success() {
            return Ok(Some(text(ran.stdout)));
        }
        if is_lock_problem(&ran) {
            return Err(Error::Locked {
                program: self.program.clone(),
                lock: self.holder_now(),
            });
        }
        Ok(None)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("XTABLES_LOCKFILE", &self.lock).env("LC_ALL", "C");
        command
    }

    fn own_lock(&self, program: &str) -> Result<OwnLock, Error> {
        OwnLock::take(&self.lock).map_err(|_| Error::Locked {
            program: program.to_owned(),
            lock: self.holder_now(),
        })
    }

    fn holder_now(&self) -> Option<LockWait> {
        let seconds = Duration::from_secs(LOCK_SECONDS.parse().unwrap_or_default());
        lock::holder(&self.lock, 0).map(|holder| LockWait {
            holder,
            held: seconds,
        })
    }
}

/// Keeps the list of our writers, and an eye on the lock while a legacy program waits.
struct Attendant<'a> {
    tool: &'a Iptables,
    seen: Option<Seen>,
}

struct Seen {
    holder: Holder,
    first: Duration,
    last: Duration,
}

impl Attend for Attendant<'_> {
    fn started(&mut self, pid: u32) {
        self.tool.writers.add(pid);
    }

    fn waiting(&mut self, pid: u32, elapsed: Duration) {
        if self.tool.flavour == Flavour::Nft {
            return;
        }
        let Some(holder) = lock::holder(&self.tool.lock, pid) else {
            return;
        };
        match &mut self.seen {
            Some(seen) if seen.holder == holder => seen.last = elapsed,
            // It was held when we came: whatever was waited so far counts.
            None => {
                self.seen = Some(Seen {
                    holder,
                    first: Duration::ZERO,
                    last: elapsed,
                })
            }
            Some(_) => {
                self.seen = Some(Seen {
                    holder,
                    first: elapsed,
                    last: elapsed,
                })
            }
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// nft programs also end with this status when the kernel refuses a command; they then name the line.
fn is_lock_problem(ran: &Ran) -> bool {
    ran.status.code() == Some(STATUS_RESOURCE) && ran.stderr.contains("xtables lock")
}

fn first_line(program: &str) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.arg("--version").env("LC_ALL", "C");
    let ran = process::run(&mut command, &[], SHORT_LIMITS, &mut Unattended)
        .map_err(|error| not_run(program, SHORT_LIMITS, error, None))?;
    Ok(String::from_utf8_lossy(&ran.stdout)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned())
}

fn not_run(program: &str, limits: Limits, error: RunError, lock: Option<LockWait>) -> Error {
    let program = program.to_owned();
    match error {
        RunError::Timeout => Error::Timeout {
            program,
            limit: limits.time,
            lock,
        },
        RunError::Ending => Error::Ending { program },
        RunError::Io(source) if source.kind() == io::ErrorKind::NotFound => Error::Missing { program },
        RunError::Io(source) => Error::Run { program, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_programs_print() {
        assert_eq!(
            Version::parse("iptables v1.8.9 (nf_tables)"),
            Some(Version(1, 8, 9))
        );
        assert_eq!(Version::parse("iptables v1.4.21"), Some(Version(1, 4, 21)));
        assert_eq!(Version::parse("ip6tables v1.6 "), Some(Version(1, 6, 0)));
        assert_eq!(Version::parse("some version, v of none"), None);
    }

    #[test]
    fn features_follow_the_version() {
        let of = |major, minor, patch, restore| Features::of(Version(major, minor, patch), restore);
        let features = |wait, restore_wait, random_fully| Features {
            wait,
            restore_wait,
            random_fully,
        };
        assert_eq!(of(1, 4, 0, false), features(Wait::No, Wait::No, false));
        assert_eq!(of(1, 4, 21, true), features(Wait::Forever, Wait::Forever, false));
        assert_eq!(of(1, 4, 22, false), features(Wait::Seconds, Wait::No, false));
        assert_eq!(of(1, 6, 2, true), features(Wait::Seconds, Wait::Seconds, true));
        assert_eq!(of(1, 8, 9, true), features(Wait::Seconds, Wait::Seconds, true));
    }

    #[test]
    fn both_flavours_are_told_apart() {
        let tool = |flavour| Iptables::of_flavour(Ip::V4, flavour, Arc::default()).unwrap();
        assert_eq!(tool(Flavour::Nft).flavour(), Flavour::Nft);
        assert_eq!(tool(Flavour::Legacy).flavour(), Flavour::Legacy);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Iptables::named(Ip::V4, "iptables-of-nowhere".into(), Arc::default()).unwrap_err();
        assert!(matches!(error, Error::Missing { program } if program == "iptables-of-nowhere"));
    }
}
