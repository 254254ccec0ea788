//! Keys and certificates, made by the openssl program for each test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A directory of certificates.
pub(crate) struct Pki {
    directory: TempDir,
}

/// The names of every server here.
pub(crate) const NAMES: &str = "subjectAltName=DNS:localhost,DNS:api.test,IP:127.0.0.1";
pub(crate) const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
pub(crate) const P384: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"];
pub(crate) const P521: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"];
pub(crate) const ED25519: &[&str] = &["ed25519"];
pub(crate) const RSA_2048: &[&str] = &["rsa:2048"];
pub(crate) const RSA_1024: &[&str] = &["rsa:1024"];
const AUTHORITY: &[&str] = &[
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign",
];

impl Pki {
    pub(crate) fn new() -> Self {
        Pki {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn openssl(&self, args: &[&str]) {
        let output = Command::new("openssl")
            .args(args)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("the tests need the openssl program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {args:?}: {said}");
    }

    /// `NAME.crt` and `NAME.key`, signed by itself, with exactly these extensions.
    pub(crate) fn self_signed(&self, name: &str, key: &[&str], extensions: &[&str]) {
        let (crt, pem, subject) = (
            format!("{name}.crt"),
            format!("{name}.key"),
            format!("/CN={name}"),
        );
        let plain = self.write("plain.cnf", "[req]\ndistinguished_name=dn\n[dn]\n");
        let config = plain.display().to_string();
        let mut args = vec![
            "req", "-x509", "-config", &config, "-nodes", "-days", "30", "-subj", &subject,
        ];
        args.extend(["-keyout", &pem, "-out", &crt, "-newkey"]);
        args.extend(key);
        extensions
            .iter()
            .for_each(|extension| args.extend(["-addext", extension]));
        self.openssl(&args);
    }

    /// An authority.
    pub(crate) fn authority(&self, name: &str, key: &[&str]) {
        self.self_signed(name, key, AUTHORITY);
    }

    /// `NAME.crt` and `NAME.key`, signed by an authority, for `days` from now.
    pub(crate) fn signed(&self, name: &str, key: &[&str], by: &str, extensions: &[&str], days: &str) {
        let (crt, pem, csr) = (
            format!("{name}.crt"),
            format!("{name}.key"),
            format!("{name}.csr"),
        );
        let (ca, ca_key, ext) = (format!("{by}.crt"), format!("{by}.key"), format!("{name}.ext"));
        self.write(&ext, extensions.join("\n") + "\n");
        let subject = format!("/CN={name}/O=system:nodes");
        let mut args = vec![
            "req", "-new", "-nodes", "-subj", &subject, "-keyout", &pem, "-out", &csr, "-newkey",
        ];
        args.extend(key);
        self.openssl(&args);
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            days,
            "-out",
            &crt,
            "-extfile",
            &ext,
        ]);
    }

    /// A server's certificate with the usual names.
    pub(crate) fn server(&self, name: &str, key: &[&str], by: &str) {
        self.signed(name, key, by, &[NAMES], "30");
    }

    /// A client's certificate.
    pub(crate) fn client(&self, name: &str, key: &[&str], by: &str) {
        self.signed(name, key, by, &["extendedKeyUsage=clientAuth"], "30");
    }
}
