//! Kernel parameters: the decimal files under `/proc/sys`, and module parameters under `/sys/module`.
//! May read and write those files, nothing else.
//! A value that is already right is never written: a process that may only read `/proc/sys` can run after
//! a privileged one has prepared the node.

use std::path::{Path, PathBuf};

/// A parameter could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading failed; the usual reason is a missing kernel module.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file does not hold one decimal number.
    #[error("{path} holds {text:?}, not a number")]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// Writing failed; the usual reasons are missing privileges and a read-only `/proc/sys`.
    #[error("can't set sysctl {name} to {value}: {source}")]
    Write {
        /// The parameter as its path below the root, e.g. `net/ipv4/ip_forward`.
        name: String,
        /// What it should have become.
        value: i64,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What [`Sysctls::ensure`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ensured {
    /// The value was right; nothing was written.
    Already,
    /// The value was written over the one given here.
    Changed {
        /// The value before.
        from: i64,
    },
}

/// The kernel parameters of this node (or of a directory that stands in for it in tests).
#[derive(Debug, Clone)]
pub struct Sysctls {
    proc_sys: PathBuf,
    modules: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Self {
            proc_sys: "/proc/sys".into(),
            modules: "/sys/module".into(),
        }
    }
}

impl Sysctls {
    /// Parameters below other roots than `/proc/sys` and `/sys/module`.
    pub fn rooted(proc_sys: impl Into<PathBuf>, modules: impl Into<PathBuf>) -> Self {
        Self {
            proc_sys: proc_sys.into(),
            modules: modules.into(),
        }
    }

    /// The value of `name`, e.g. `net/netfilter/nf_conntrack_max`.
    pub fn get(&self, name: &str) -> Result<i64, Error> {
        read_number(&self.proc_sys.join(name))
    }

    /// Makes `name` equal to `value`, writing only when it differs.
    pub fn ensure(&self, name: &str, value: i64) -> Result<Ensured, Error> {
        ensure_number(&self.proc_sys.join(name), name, value)
    }

    /// The parameter of a loaded module, e.g. `nf_conntrack`, `hashsize`.
    pub fn module_parameter(&self, module: &str, parameter: &str) -> Result<i64, Error> {
        read_number(&self.parameter_path(module, parameter))
    }

    /// Makes a module's parameter equal to `value`, writing only when it differs.
    pub fn ensure_module_parameter(
        &self,
        module: &str,
        parameter: &str,
        value: i64,
    ) -> Result<Ensured, Error> {
        ensure_number(
            &self.parameter_path(module, parameter),
            &format!("{module}/parameters/{parameter}"),
            value,
        )
    }

    fn parameter_path(&self, module: &str, parameter: &str) -> PathBuf {
        self.modules.join(module).join("parameters").join(parameter)
    }
}

fn read_number(path: &Path) -> Result<i64, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let text = text.trim();
    text.parse().map_err(|_| Error::NotANumber {
        path: path.to_owned(),
        text: text.to_owned(),
    })
}

fn ensure_number(path: &Path, name: &str, value: i64) -> Result<Ensured, Error> {
    let from = read_number(path)?;
    if from == value {
        return Ok(Ensured::Already);
    }
    std::fs::write(path, value.to_string()).map_err(|source| Error::Write {
        name: name.to_owned(),
        value,
        source,
    })?;
    Ok(Ensured::Changed { from })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn stand_in(files: &[(&str, &str)]) -> (tempfile::TempDir, Sysctls) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let sysctls = Sysctls::rooted(dir.path().join("proc"), dir.path().join("module"));
        (dir, sysctls)
    }

    #[test]
    fn a_different_value_is_written_and_the_old_one_reported() {
        let (dir, sysctls) = stand_in(&[("proc/net/ipv4/ip_forward", "0\n")]);
        assert_eq!(
            sysctls.ensure("net/ipv4/ip_forward", 1).unwrap(),
            Ensured::Changed { from: 0 }
        );
        assert_eq!(
            std::fs::read_to_string(dir.path().join("proc/net/ipv4/ip_forward")).unwrap(),
            "1"
        );
        assert_eq!(sysctls.get("net/ipv4/ip_forward").unwrap(), 1);
    }

    #[test]
    fn an_equal_value_is_not_written() {
        let (dir, sysctls) = stand_in(&[("proc/a", "7\n")]);
        let path = dir.path().join("proc/a");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        assert_eq!(sysctls.ensure("a", 7).unwrap(), Ensured::Already);
        // The newline that only an untouched file still has.
        assert_eq!(std::fs::read_to_string(path).unwrap(), "7\n");
    }

    #[test]
    fn errors_name_the_file_and_the_value() {
        let (dir, sysctls) = stand_in(&[("proc/text", "many\n"), ("proc/dir/x", "")]);
        assert_eq!(
            sysctls.get("absent").unwrap_err().to_string(),
            format!(
                "can't read {}: No such file or directory (os error 2)",
                dir.path().join("proc/absent").display()
            )
        );
        assert!(
            sysctls
                .get("text")
                .unwrap_err()
                .to_string()
                .ends_with("holds \"many\", not a number")
        );
        assert!(sysctls.ensure("dir", 1).is_err());
    }

    #[test]
    fn module_parameters_have_their_own_root() {
        let (dir, sysctls) = stand_in(&[("module/nf_conntrack/parameters/hashsize", "16384")]);
        assert_eq!(
            sysctls.module_parameter("nf_conntrack", "hashsize").unwrap(),
            16384
        );
        let ensured = sysctls
            .ensure_module_parameter("nf_conntrack", "hashsize", 32768)
            .unwrap();
        assert_eq!(ensured, Ensured::Changed { from: 16384 });
        let path = dir.path().join("module/nf_conntrack/parameters/hashsize");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "32768");
    }
}
