//! iptables and ip6tables: their language (tables, rules, what save prints, what restore reads), their programs
//! (restore, save, versions, the xtables lock), and a watch for changes that somebody else made. The language is pure;
//! the rest may run those programs, read /proc and open netlink or raw sockets.
//! Always holds: every program that is started ends, by itself or at its time limit, before the call returns.

mod chains;
mod choose;
mod document;
mod failure;
mod lock;
mod mixed;
mod program;
mod rule;
mod saved;
mod table;
mod watch;

pub use chains::{Chain, Chains};
pub use document::{Command, Document};
pub use failure::Failure;
pub use lock::{Holder, LockWait};
pub use mixed::{Other, other_flavour};
pub use program::{Features, Flavour, Iptables, Restored, Version, Wait};
pub use rule::{canon, same, target};
pub use saved::Saved;
pub use table::{BASE_CHAINS, Jump, Table};
pub use watch::{Change, Watch, Writers, legacy_fingerprint, poll_legacy, watch_nft};

use std::fmt;
use std::io;
use std::time::Duration;

/// Which of the two programs: `iptables` or `ip6tables`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ip {
    V4,
    V6,
}

impl Ip {
    /// The program's plain name.
    pub fn program(self) -> &'static str {
        match self {
            Ip::V4 => "iptables",
            Ip::V6 => "ip6tables",
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// What was attempted with iptables and did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not in `PATH`.
    #[error("{program} is not installed")]
    Missing {
        /// Its name.
        program: String,
    },
    /// The program is there and could not be run.
    #[error("running {program}: {source}")]
    Run {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The program answers, but not with a version.
    #[error("{program} --version printed no version: {output:?}")]
    Version {
        /// Its name.
        program: String,
        /// What it printed instead.
        output: String,
    },
    /// The program did not end in time and was ended.
    #[error("{program} did not end within {limit:?}{}", lock::described(.lock))]
    Timeout {
        /// Its name.
        program: String,
        /// The time it had.
        limit: Duration,
        /// Who held the xtables lock meanwhile.
        lock: Option<LockWait>,
    },
    /// The program was ended, or not started, because this process is about to end.
    #[error("{program} was not run to its end, because this process is about to end")]
    Ending {
        /// Its name.
        program: String,
    },
    /// Somebody else held the xtables lock for longer than the program was told to wait.
    #[error("{program} did not get the xtables lock{}", lock::described(.lock))]
    Locked {
        /// The program that waited.
        program: String,
        /// Who held it, as far as it could be seen.
        lock: Option<LockWait>,
    },
    /// A restore was refused: nothing of the table that failed was changed.
    #[error("{0}")]
    Restore(Box<Failure>),
    /// Any other program ended with an error.
    #[error("{command} ended with {status}: {stderr}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// Its exit status, or the signal that ended it.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// The watch could not be set up.
    #[error("watching for changes of the rules: {0}")]
    Watch(#[source] crate::netlink::Error),
    /// A table could not be asked for its size.
    #[error("asking the kernel for table {table}: {source}")]
    TableInfo {
        /// The table.
        table: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// Whether trying again later can help without anything being changed: a held lock, a program that was too slow or
    /// was ended with us.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::Locked { .. } | Error::Timeout { .. } | Error::Ending { .. }
        )
    }
}
