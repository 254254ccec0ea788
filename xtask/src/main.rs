//! The one door for tooling: `cargo xtask <command>`.
//!
//! Everything a person or the CI does with this repository beyond plain cargo is a command here. Commands
//! may run cargo, Debian's tools and the built `ferry`; none of them changes a file of the tree except `bless`.

mod bench;
mod bless;
mod book;
mod check;
mod deploy;
mod fuzz;
mod image;
mod lab;
mod licences;
mod monitoring;
mod package;
mod packages;
mod program;
mod release;
mod sbom;
mod shell;
mod soak;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Tooling of Ferry",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Formatting, clippy with warnings as errors, licences of all dependencies
    Check,
    /// Install what is missing, build, and run every test: unit, golden, netns, api, fuzz (short), vm
    Test(test::Args),
    /// The packet table only: real packets between namespaces, every mode this kernel has
    Netns(test::NetnsArgs),
    /// Tests that need a kernel with IPVS, in a virtual machine
    Vm(vm::Args),
    /// Rewrite the golden files from what the code does now; read the diff before you commit it
    Bless,
    /// Figures of Ferry, and of a kube-proxy beside it (`--peer PATH`)
    Bench(bench::Args),
    /// Pieces of the test lab, to play with
    #[command(subcommand)]
    Lab(lab::Command),
    /// What users install: manifests and chart with kubectl and helm, the Debian package in a fresh root
    Deploy,
    /// Build the Debian package
    Package(package::Args),
    /// Build the container image, without a daemon or a registry
    Image(image::Args),
    /// Build every artefact of a release: program, package, image, chart, manifests, lists of parts, checksums
    Release(release::Args),
    /// The alerts and dashboards of deploy/monitoring, in a real Prometheus that scrapes a real ferry
    Monitoring(monitoring::Args),
    /// Mixed churn under traffic for an hour, in every mode this kernel has
    Soak(soak::Args),
    /// Build the book (docs/) with mdBook into target/book
    Book,
    /// Run the fuzz targets for a while
    Fuzz(fuzz::Args),
    /// What the CI runs: check, then test
    Ci,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Check => check::run(),
        Command::Test(args) => test::run(&args),
        Command::Netns(args) => test::netns(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Bless => bless::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(command) => lab::run(&command),
        Command::Deploy => deploy::run(),
        Command::Package(args) => package::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Monitoring(args) => monitoring::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Book => book::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Ci => test::ci(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::Cli;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        for line in [
            "bench --services 100 --peer /bin/kube-proxy",
            "test --no-vm -- filter",
            "netns -- nftables::",
            "vm --engine qemu",
            "vm --kernel user-mode-linux -- uname -r",
            "fuzz config --seconds 5",
            "soak --seconds 60 --modes nftables",
            "lab api --services 3",
        ] {
            let words = std::iter::once("xtask").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
