//! The book: `docs/` by mdBook.
//!
//! May touch: the build directory, and the cache, where mdBook is kept: building it takes minutes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell;
use crate::vm::packages::{default_cache, fill, on_path};

const MDBOOK: &str = "0.4.52";

pub(crate) fn run() -> Result<()> {
    let mut build = Command::new(mdbook()?);
    build.current_dir(shell::root()).arg("build");
    shell::run(&mut build)?;
    let index = shell::root().join("target/book/index.html");
    ensure!(index.exists(), "{} was not made", index.display());
    println!("{}", index.display());
    Ok(())
}

/// The installed one, else one built into the cache, without what only its own server needs.
fn mdbook() -> Result<PathBuf> {
    if let Some(path) = on_path("mdbook") {
        return Ok(path);
    }
    let directory = default_cache()?.join(format!("mdbook-{MDBOOK}"));
    if !directory.join("bin/mdbook").exists() {
        println!("building mdbook {MDBOOK} into {}", directory.display());
        fill(&directory, |directory| {
            let mut install = shell::cargo();
            install
                .args([
                    "install",
                    "mdbook",
                    "--locked",
                    "--no-default-features",
                    "--quiet",
                ])
                .args(["--version", MDBOOK, "--root"])
                .arg(directory)
                .env("CARGO_TARGET_DIR", directory.join("target"));
            shell::run(&mut install)?;
            Ok(std::fs::remove_dir_all(directory.join("target"))?)
        })
        .context("build mdbook")?;
    }
    Ok(directory.join("bin/mdbook"))
}
