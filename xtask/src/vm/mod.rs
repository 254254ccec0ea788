//! The VM tier: what the machine's own kernel cannot show is tested under a stock Debian kernel.
//!
//! May touch: the cache directory, a temporary directory, apt's download command. Needs neither root nor /dev/kvm.
//! Always holds: the command in the guest sees the host's files read-only under a RAM overlay (the workspace read-write),
//! an empty network, and its exit code is ours; a guest that dies or runs out of time is a failure, never a pass.

mod engine;
mod guest;
pub(crate) mod packages;
mod tier;

use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;

/// The package whose kernel runs as a process on the host instead of under QEMU.
const USER_MODE: &str = "user-mode-linux";
const DEFAULT_KERNEL: &str = "linux-image-amd64";
/// In megabytes: four packet cases at a time, and programs kept in memory.
const DEFAULT_MEMORY: u32 = 3072;
/// In seconds: several times what a quiet machine takes, so that a busy one passes too.
const DEFAULT_TIMEOUT: u64 = 1800;

/// Run a command, or the whole VM tier, under a Debian kernel that has IPVS.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Debian package of the kernel: a linux-image (meta-)package for QEMU, or user-mode-linux. Without this and
    /// without a filter or a command, the tier's cases are divided between the stock kernel and user-mode-linux, at once.
    #[arg(long)]
    kernel: Option<String>,
    /// Where the kernel, the emulator and the initramfs are kept between runs.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Guest memory in megabytes.
    #[arg(long, default_value_t = DEFAULT_MEMORY)]
    memory: u32,
    /// Seconds until the guest is stopped and the run has failed.
    #[arg(long, default_value_t = DEFAULT_TIMEOUT)]
    timeout: u64,
    /// Show the guest's console as it comes.
    #[arg(short, long)]
    verbose: bool,
    /// Only tests whose name contains this (for the tier).
    #[arg(long)]
    filter: Option<String>,
    /// The command to run in the guest, after `--`; without one the tier's tests are run.
    #[arg(last = true)]
    command: Vec<String>,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            kernel: None,
            cache: None,
            memory: DEFAULT_MEMORY,
            timeout: DEFAULT_TIMEOUT,
            verbose: false,
            filter: None,
            command: Vec::new(),
        }
    }
}

/// The door: one command in the guest (its exit code becomes ours), or the tier.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.command.is_empty() {
        let shares = match (&args.kernel, &args.filter) {
            (None, None) => vec![
                tier::share(machine(args, DEFAULT_KERNEL)?, "stock"),
                tier::share(machine(args, USER_MODE)?, "user-mode"),
            ],
            (kernel, filter) => {
                let kernel = kernel.as_deref().unwrap_or(DEFAULT_KERNEL);
                vec![tier::named(machine(args, kernel)?, filter.as_deref())]
            }
        };
        return tier::run(shares);
    }
    let machine = machine(args, args.kernel.as_deref().unwrap_or(DEFAULT_KERNEL))?;
    match engine::run(&machine, &std::env::current_dir()?, &args.command)? {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

fn machine(args: &Args, kernel: &str) -> Result<engine::Machine> {
    let cache = match &args.cache {
        Some(path) => std::path::absolute(path)?,
        None => packages::default_cache()?,
    };
    let emulator = (kernel != USER_MODE)
        .then(|| packages::emulator(&cache))
        .transpose()?;
    Ok(engine::Machine {
        kernel: packages::kernel(&cache, kernel)?,
        emulator,
        memory: args.memory,
        timeout: Duration::from_secs(args.timeout),
        verbose: args.verbose,
        label: None,
    })
}
