//! Tells the thread that something happened where it matters.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::{ManifestError, Wake};

/// inotify watches on a changing set of directories.
pub(super) struct Watches {
    watcher: RecommendedWatcher,
    /// By identity: a directory that was replaced by another of the same name needs a new watch.
    covered: BTreeMap<PathBuf, (u64, u64)>,
}

impl Watches {
    pub(super) fn new(directory: &Path, wake: Sender<Wake>) -> Result<Self, ManifestError> {
        let failed = |source| ManifestError::Watch {
            path: directory.to_owned(),
            source,
        };
        // The directory's own name may be moved or relinked, which only its parent tells.
        let parent = match directory.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let (name, around) = (directory.file_name().map(ToOwned::to_owned), parent.clone());
        // Of what happens beside the directory, only its own name counts.
        let beside = move |path: &Path| path.parent() == Some(&around) && path.file_name() != name.as_deref();
        let notice = move |event: notify::Result<Event>| {
            let matters = match event {
                Ok(event) if event.paths.is_empty() => is_change(event.kind),
                Ok(event) => is_change(event.kind) && !event.paths.iter().all(|path| beside(path)),
                // Some events were lost: anything may have happened.
                Err(_) => true,
            };
            if matters {
                // The thread may have ended already.
                let _ = wake.send(Wake::Changed);
            }
        };
        let mut watcher = notify::recommended_watcher(notice).map_err(failed)?;
        if let Err(error) = watcher.watch(&parent, RecursiveMode::NonRecursive) {
            tracing::debug!(directory = %parent.display(), "not watched: {error}");
        }
        Ok(Watches {
            watcher,
            covered: BTreeMap::new(),
        })
    }

    /// Watches exactly these directories; tells whether some were not watched before, so that what happened in them
    /// until now was not noticed. Where watching fails, the regular look must do.
    pub(super) fn cover(&mut self, places: &BTreeSet<PathBuf>) -> bool {
        let gone: Vec<PathBuf> = self
            .covered
            .keys()
            .filter(|place| !places.contains(*place))
            .cloned()
            .collect();
        for place in gone {
            self.covered.remove(&place);
            let _ = self.watcher.unwatch(&place);
        }
        let mut fresh = false;
        for place in places {
            let Some(identity) = identity(place) else { continue };
            if self.covered.get(place) == Some(&identity) {
                continue;
            }
            let _ = self.watcher.unwatch(place);
            match self.watcher.watch(place, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.covered.insert(place.clone(), identity);
                    fresh = true;
                }
                Err(error) => tracing::debug!(directory = %place.display(), "not watched: {error}"),
            }
        }
        fresh
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Our own reading must not wake us again.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => true,
    }
}
