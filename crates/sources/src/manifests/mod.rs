//! Facts from a directory of manifests, for nodes without an API server.
//!
//! Reads `*.yaml`, `*.yml` and `*.json` of one directory (not of its subdirectories, nothing whose name begins with
//! a dot, symbolic links followed), watches it with inotify and touches nothing else. A file that cannot be read
//! leaves its last good content in force and never spoils the others.

mod directory;
mod read;
mod watch;

pub use directory::Directory;
pub use read::{Broken, Format, read};

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::assemble::Mailbox;

use watch::Watches;

/// Writers often do several things in a row; they get this long to finish one, and no longer than `SETTLE_TIMEOUT` in all.
const QUIET_INTERVAL: Duration = Duration::from_millis(100);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a directory that is swapped under our hands is read again before the next event is waited for.
const MAX_RESCANS: u32 = 8;
/// Some filesystems tell nothing about changes made elsewhere.
const RESCAN_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("cannot read the directory of manifests {}: {source}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot watch the directory of manifests {}: {source}", .path.display())]
    Watch { path: PathBuf, source: notify::Error },
    #[error("cannot start a thread for the directory of manifests {}: {source}", .path.display())]
    Thread { path: PathBuf, source: io::Error },
}

/// Follows a directory until it is dropped.
#[derive(Debug)]
pub struct ManifestSource {
    thread: Option<JoinHandle<()>>,
    stop: Sender<Wake>,
}

/// What the thread waits for.
#[derive(Debug, PartialEq, Eq)]
enum Wake {
    Changed,
    Stop,
}

impl ManifestSource {
    /// Reads the directory, puts all of it into the mailbox and lists every kind; then follows it on a thread of its
    /// own. A directory that cannot be read at the start is an error; broken files are problems of the mailbox.
    pub fn start(path: &Path, node_name: &str, mailbox: Arc<Mailbox>) -> Result<Self, ManifestError> {
        let (stop, wakes) = channel();
        let mut watches = Watches::new(path, stop.clone())?;
        let mut directory = Directory::new(path, node_name);
        directory
            .scan(&mailbox)
            .map_err(|source| ManifestError::Directory {
                path: path.to_owned(),
                source,
            })?;
        directory.listed(&mailbox);
        look(&mut directory, &mut watches, &mailbox);
        let follow = move || {
            let mut next_look = Instant::now() + RESCAN_INTERVAL;
            loop {
                match wakes.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                    Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(Wake::Changed) => {
                        let timeout = Instant::now() + SETTLE_TIMEOUT;
                        let until_timeout =
                            || QUIET_INTERVAL.min(timeout.saturating_duration_since(Instant::now()));
                        while let Ok(wake) = wakes.recv_timeout(until_timeout()) {
                            if wake == Wake::Stop {
                                return;
                            }
                        }
                    }
                }
                look(&mut directory, &mut watches, &mailbox);
                next_look = Instant::now() + RESCAN_INTERVAL;
            }
        };
        let thread = std::thread::Builder::new().name("manifests".into()).spawn(follow);
        let thread = thread.map_err(|source| ManifestError::Thread {
            path: path.to_owned(),
            source,
        })?;
        Ok(ManifestSource {
            thread: Some(thread),
            stop,
        })
    }
}

/// Reads everything, until nothing has been read that was not watched at the time.
fn look(directory: &mut Directory, watches: &mut Watches, mailbox: &Mailbox) {
    for _ in 0..MAX_RESCANS {
        directory.follow(mailbox);
        if !watches.cover(&directory.places()) {
            return;
        }
    }
}

impl Drop for ManifestSource {
    fn drop(&mut self) {
        let _ = self.stop.send(Wake::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a directory once, for commands that do not stay.
pub fn load(path: &Path, node_name: &str, mailbox: &Mailbox) -> Result<(), ManifestError> {
    let mut directory = Directory::new(path, node_name);
    directory
        .scan(mailbox)
        .map_err(|source| ManifestError::Directory {
            path: path.to_owned(),
            source,
        })?;
    directory.listed(mailbox);
    Ok(())
}
