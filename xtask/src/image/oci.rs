//! An OCI image layout, written file by file: no daemon, no registry.
//!
//! May touch: the directory given. Always holds: the same layers and the same words give the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::containerfile::Stage;

/// What an image is besides its files.
#[derive(Debug)]
pub(super) struct About<'a> {
    pub(super) stage: Stage,
    pub(super) architecture: &'a str,
    pub(super) created: &'a str,
    pub(super) tag: &'a str,
}

/// A layer: uncompressed, and what made it.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) tar: PathBuf,
    pub(super) made_by: String,
}

/// Writes the layout into a directory that is there and empty.
pub(super) fn write(directory: &Path, layers: &[Layer], about: &About<'_>) -> Result<()> {
    fs::create_dir_all(directory.join("blobs/sha256"))?;
    let blob = |bytes: &[u8], media_type: &str| -> Result<Value> {
        let digest = sha256(bytes);
        fs::write(directory.join("blobs/sha256").join(&digest), bytes)?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    };
    let mut packed = Vec::new();
    let mut contents = Vec::new();
    let mut history = Vec::new();
    for Layer { tar, made_by } in layers {
        contents.push(format!("sha256:{}", sha256(&fs::read(tar)?)));
        packed.push(blob(&gzip(tar)?, "application/vnd.oci.image.layer.v1.tar+gzip")?);
        history.push(json!({"created": about.created, "created_by": made_by}));
    }
    let Stage {
        entrypoint,
        env,
        labels,
    } = &about.stage;
    let config = json!({
        "created": about.created,
        "architecture": about.architecture,
        "os": "linux",
        "config": {"Env": env, "Entrypoint": entrypoint, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": contents},
        "history": history,
    });
    let config = blob(
        &serde_json::to_vec(&config)?,
        "application/vnd.oci.image.config.v1+json",
    )?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": packed, "annotations": labels,
    });
    let mut manifest = blob(&serde_json::to_vec(&manifest)?, media_type)?;
    // what umoci and skopeo, and what containerd call it
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": about.tag,
        "io.containerd.image.name": format!("docker.io/library/ferry:{}", about.tag),
    });
    manifest["platform"] = json!({"architecture": about.architecture, "os": "linux"});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    fs::write(directory.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(directory.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(())
}

/// What a directory has under these names, as an archive in which nothing tells of the machine or the hour.
pub(super) fn archive(directory: &Path, names: &[&str], to: &Path, date: u64) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=gnu", "--numeric-owner"])
        .args(["--owner=0", "--group=0", "--mode=u=rwX,go=rX"])
        .arg(format!("--mtime=@{date}"))
        .arg("--directory")
        .arg(directory)
        .arg("--file")
        .arg(to)
        .args(names);
    crate::shell::output(&mut tar).map(drop)
}

fn gzip(file: &Path) -> Result<Vec<u8>> {
    let input = fs::File::open(file).with_context(|| file.display().to_string())?;
    let out = Command::new("gzip")
        .args(["--no-name", "--best", "--stdout"])
        .stdin(input)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start gzip")?;
    ensure!(out.status.success(), "gzip: {}", out.status);
    Ok(out.stdout)
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
