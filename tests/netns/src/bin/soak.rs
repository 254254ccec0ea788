//! Endurance runs; `cargo xtask soak` is the way in.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use ferry_netns::{Mode, soak};

/// Mixed churn under traffic, in each mode at once
#[derive(Debug, Parser)]
struct Args {
    /// How long
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Modes to run
    #[arg(long, value_delimiter = ',', default_values_t = ["nftables".to_owned(), "iptables".to_owned(), "userspace".to_owned()])]
    modes: Vec<String>,
    /// What happens follows from this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where samples (CSV) and pictures (SVG) go
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let modes: Vec<Mode> = args
        .modes
        .iter()
        .map(|name| Mode::named(name).with_context(|| format!("--modes: there is no mode {name:?}")))
        .collect::<Result<_>>()?;
    let length = Duration::from_secs(args.seconds);
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = modes
            .iter()
            .map(|mode| (mode, scope.spawn(move || soak::run(*mode, length, args.seed))))
            .collect();
        let outcome = |(mode, thread): (&Mode, std::thread::ScopedJoinHandle<'_, Result<soak::Report>>)| {
            let result = thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("the run panicked")));
            (*mode, result)
        };
        running.into_iter().map(outcome).collect::<Vec<_>>()
    });
    let mut failed = Vec::new();
    for (mode, result) in results {
        match result {
            Ok(report) => tell(&report, args.out.as_deref())?,
            Err(e) => {
                eprintln!("{}: {e:#}", mode.as_str());
                failed.push(mode.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed with seed {}: {}", args.seed, failed.join(", "));
    }
    Ok(())
}

fn tell(report: &soak::Report, out: Option<&std::path::Path>) -> Result<()> {
    let most = |of: fn(&soak::Sample) -> u64| report.samples.iter().map(of).max().unwrap_or_default();
    println!(
        "{}: {} changes, {} requests and {} messages, nothing lost; at most {} kB, {} files, {} threads, {} lines of rules",
        report.mode.as_str(),
        report.changes,
        report.requests,
        report.said,
        most(|s| s.memory_kb),
        most(|s| s.files),
        most(|s| s.threads),
        most(|s| s.kernel_objects),
    );
    let Some(out) = out else { return Ok(()) };
    std::fs::create_dir_all(out)?;
    for (ending, text) in [("csv", report.csv()), ("svg", report.svg())] {
        let file = out.join(format!("soak-{}.{ending}", report.mode.as_str()));
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}
