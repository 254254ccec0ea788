//! Coverage-guided fuzzing with libFuzzer, on the stable toolchain.
//!
//! `cargo fuzz` needs a nightly compiler only for its sanitizers. Coverage alone is a stable code generation
//! option, and safe Rust gains little from the sanitizers, so the targets are built here with plain cargo.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets to run (default: all)
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Keep what was found to be interesting in the repository's corpus, not in the build directory
    #[arg(long)]
    grow: bool,
}

impl Args {
    /// As part of all tests: long enough to run the whole corpus and try the nearest mutations.
    pub(crate) fn short() -> Self {
        Args {
            targets: Vec::new(),
            seconds: 10,
            grow: false,
        }
    }

    /// What gives these arguments, without naming targets.
    pub(crate) fn command_line(&self) -> String {
        format!("cargo xtask fuzz --seconds {}", self.seconds)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let all = targets()?;
    let chosen: Vec<&String> = if args.targets.is_empty() {
        all.iter().collect()
    } else {
        if let Some(unknown) = args.targets.iter().find(|t| !all.contains(t)) {
            bail!("no fuzz target {unknown:?}; there are {}", all.join(", "));
        }
        args.targets.iter().collect()
    };
    let out = shell::target_dir().join("fuzz");
    let triple = shell::host_triple()?;
    let mut build = shell::cargo();
    build.args([
        "build",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--locked",
        "--bins",
        "--target",
        &triple,
    ]);
    shell::run(build.env("RUSTFLAGS", COVERAGE).env("CARGO_TARGET_DIR", &out))?;
    for target in chosen {
        one(target, &out.join(&triple).join("debug").join(target), args)?;
    }
    Ok(())
}

fn one(target: &str, program: &std::path::Path, args: &Args) -> Result<()> {
    let seeds = shell::root().join("fuzz/corpus").join(target);
    let found = shell::target_dir().join("fuzz/found").join(target);
    for dir in [&seeds, &found] {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let mut command = Command::new(program);
    command.current_dir(&found).args([
        format!("-max_total_time={}", args.seconds),
        "-timeout=20".into(),
        "-rss_limit_mb=2048".into(),
        "-max_len=65536".into(),
        "-print_final_stats=1".into(),
        "-verbosity=0".into(),
    ]);
    // libFuzzer writes what is new to the first directory and only reads the others
    let dirs: [&PathBuf; 2] = if args.grow {
        [&seeds, &found]
    } else {
        [&found, &seeds]
    };
    shell::run(command.args(dirs))
        .with_context(|| format!("fuzz target {target} failed; its input is in {}", found.display()))
}

fn targets() -> Result<Vec<String>> {
    let dir = shell::root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("no fuzz targets in {}", dir.display()))? {
        let path = entry?.path();
        if let (Some("rs"), Some(stem)) = (path.extension().and_then(|e| e.to_str()), path.file_stem()) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
