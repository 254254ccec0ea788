//! What the files of a directory say together, and what of it has been published.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ferry_model::{Event, ServiceName, Skipped};

use super::read::{Broken, Format, read};
use crate::assemble::{Change, Kind, Mailbox, ObjectId};
use crate::convert::Interner;

const MAX_FILE: u64 = 256 << 20;

#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    node_name: String,
    interner: Interner,
    files: BTreeMap<PathBuf, File>,
    published: BTreeMap<ObjectId, Change>,
    /// The directory itself cannot be read at present.
    failing: bool,
}

#[derive(Debug, Default)]
struct File {
    /// Of the bytes that were last looked at; files are small enough to be read whenever something happens.
    hash: Option<u64>,
    /// What the last good bytes say.
    changes: Vec<Change>,
    broken: Option<Broken>,
}

type Merged = BTreeMap<ObjectId, Change>;

impl Directory {
    pub fn new(path: &Path, node_name: &str) -> Self {
        Directory {
            path: path.to_owned(),
            node_name: node_name.to_owned(),
            interner: Interner::default(),
            files: BTreeMap::new(),
            published: BTreeMap::new(),
            failing: false,
        }
    }

    /// Looks at every file and publishes what changed. Where the directory itself cannot be read, nothing changes.
    pub fn scan(&mut self, mailbox: &Mailbox) -> io::Result<()> {
        let found = find(&self.path)?;
        let vanished: Vec<PathBuf> = self
            .files
            .keys()
            .filter(|path| !found.contains_key(*path))
            .cloned()
            .collect();
        for path in vanished {
            self.files.remove(&path);
            mailbox.set_problem(&path.display().to_string(), None);
        }
        for (path, format) in found {
            let file = self.files.entry(path.clone()).or_default();
            file.look(&path, format, &self.interner, mailbox);
        }
        self.publish(mailbox);
        Ok(())
    }

    /// As [`Directory::scan`], for later: a directory that went away is a problem to report, once.
    pub(super) fn follow(&mut self, mailbox: &Mailbox) {
        let about = self.path.display().to_string();
        match self.scan(mailbox) {
            Ok(()) if self.failing => {
                tracing::info!(directory = about, "readable again");
                mailbox.set_problem(&about, None);
                self.failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                if !self.failing {
                    tracing::warn!(directory = about, "cannot read; what is in force stays: {error}");
                }
                mailbox.set_problem(&about, Some(error.to_string()));
                self.failing = true;
            }
        }
    }

    pub(super) fn listed(&self, mailbox: &Mailbox) {
        Kind::ALL.into_iter().for_each(|kind| mailbox.listed(kind));
    }

    /// The directories in which a change can matter: our own and those that files are linked from.
    pub(super) fn places(&self) -> BTreeSet<PathBuf> {
        let real = |path: &Path| path.canonicalize().ok();
        let linked = self
            .files
            .keys()
            .filter_map(|file| Some(real(file)?.parent()?.to_owned()));
        real(&self.path).into_iter().chain(linked).collect()
    }

    fn publish(&mut self, mailbox: &Mailbox) {
        let merged = self.merge();
        let mut changes = Vec::new();
        for (id, old) in &self.published {
            if !merged.contains_key(id) {
                changes.push(Change::gone(id.clone(), parts(old)));
            }
        }
        for (id, new) in &merged {
            match self.published.get(id) {
                Some(old) if old == new => {}
                Some(old) => changes.push(new.clone().replacing(parts(old))),
                None => changes.push(new.clone()),
            }
        }
        self.published = merged;
        mailbox.put_all(changes);
    }

    /// All objects of all files. Of two with the same name the one in the later file holds.
    fn merge(&self) -> Merged {
        let mut merged = Merged::new();
        let mut homes: BTreeMap<ObjectId, &Path> = BTreeMap::new();
        let objects = self
            .files
            .iter()
            .flat_map(|(path, file)| file.changes.iter().map(move |c| (path, c)));
        for (path, change) in objects.filter(|(_, change)| self.is_ours(change)) {
            let mut change = self.readable(change.clone());
            if let Some(earlier) = homes.insert(change.id.clone(), path) {
                change.skipped.push(Skipped {
                    object: (&change.id).into(),
                    part: None,
                    reason: format!("is in {} too; this one from {} holds", name(earlier), name(path)),
                });
            }
            merged.insert(change.id.clone(), change);
        }
        without_shadowed_endpoints(merged)
    }

    fn is_ours(&self, change: &Change) -> bool {
        match &change.id {
            ObjectId::Node(name) => **name == *self.node_name,
            ObjectId::Service(_) | ObjectId::Slice(_) | ObjectId::Endpoints(_) | ObjectId::ServiceCidr(_) => {
                true
            }
        }
    }

    /// An object that cannot be read any more stays as it was.
    fn readable(&self, mut change: Change) -> Change {
        if change.events.is_empty()
            && let Some(old) = self.published.get(&change.id)
        {
            change.events.clone_from(&old.events);
        }
        change
    }
}

/// A dump of a cluster has both EndpointSlices and the Endpoints that mirror them; the slices know more.
fn without_shadowed_endpoints(mut merged: Merged) -> Merged {
    let with_slices: BTreeSet<ServiceName> = merged
        .iter()
        .filter(|(id, _)| matches!(id, ObjectId::Slice(_)))
        .flat_map(|(_, change)| &change.events)
        .filter_map(|event| match event {
            Event::Slice(_, Some(slice)) => Some(slice.service.clone()),
            _ => None,
        })
        .collect();
    merged.retain(|id, _| !matches!(id, ObjectId::Endpoints(service) if with_slices.contains(service)));
    merged
}

fn parts(change: &Change) -> u16 {
    u16::try_from(change.served()).unwrap_or(u16::MAX)
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

impl File {
    fn look(&mut self, path: &Path, format: Format, interner: &Interner, mailbox: &Mailbox) {
        let outcome = match bytes_of(path) {
            Err(error) => {
                self.hash = None;
                Err(Broken {
                    line: None,
                    reason: error.to_string(),
                })
            }
            Ok(bytes) => {
                let hash = Some(hash(&bytes));
                if hash == self.hash {
                    return;
                }
                self.hash = hash;
                read(&bytes, format, interner)
            }
        };
        let about = path.display().to_string();
        match outcome {
            Ok(changes) => {
                self.changes = changes;
                if self.broken.take().is_some() {
                    tracing::info!(file = about, "readable again");
                    mailbox.set_problem(&about, None);
                }
            }
            Err(broken) if self.broken.as_ref() == Some(&broken) => {}
            Err(broken) => {
                tracing::warn!(
                    file = about,
                    "broken; its last good content stays in force: {broken}"
                );
                mailbox.set_problem(&about, Some(broken.to_string()));
                self.broken = Some(broken);
            }
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    if size > MAX_FILE {
        return Err(io::Error::other(format!("is larger than {} MiB", MAX_FILE >> 20)));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files that count. A link that leads nowhere counts too: it is a file that cannot be read.
fn find(path: &Path) -> io::Result<BTreeMap<PathBuf, Format>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml" | "yml") => Format::Yaml,
            Some("json") => Format::Json,
            _ => continue,
        };
        // Whatever is neither file nor broken link (a directory, a pipe) must not even be opened.
        if !hidden && path.metadata().map_or(true, |meta| meta.is_file()) {
            found.insert(path, format);
        }
    }
    Ok(found)
}
