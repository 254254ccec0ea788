//! The VM tier: what the machine's own kernel cannot show is tested under a stock Debian kernel.
//!
//! May touch: the cache directory, a temporary directory, apt's download command. Needs neither root nor /dev/kvm.
//! Always holds: the command in the guest sees the host's files read-only under a RAM overlay (the workspace read-write),
//! an empty network, and its exit code is ours; a guest that dies or runs out of time is a failure, never a pass.

mod engine;
mod guest;
pub(crate) mod packages;
mod probe;
mod tier;

use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;

use probe::Verdict;

/// The package whose kernel runs as a process on the host instead of under QEMU.
const USER_MODE: &str = "user-mode-linux";
const DEFAULT_KERNEL: &str = "linux-image-amd64";
/// In megabytes: four packet cases at a time, and programs kept in memory.
const DEFAULT_MEMORY: u32 = 3072;
/// In seconds: several times what a quiet machine takes, so that a busy one passes too.
const DEFAULT_TIMEOUT: u64 = 3600;
/// Names the engine where the command line cannot: `FERRY_VM_ENGINE=qemu cargo xtask ci`.
const ENGINE_VARIABLE: &str = "FERRY_VM_ENGINE";

/// What runs the cases that ask for the older kind of iptables; the others need QEMU in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// Debian's user-mode-linux, beside one guest in QEMU
    UserMode,
    /// QEMU as well: two guests share all cases
    Qemu,
}

/// Run a command, or the whole VM tier, under a Debian kernel that has IPVS.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For the whole tier: where the cases with the older kind of iptables run. Without this and without
    /// FERRY_VM_ENGINE in the environment, user-mode-linux if it can be booted here, else QEMU.
    #[arg(long, value_enum, conflicts_with_all = ["kernel", "filter", "command"])]
    engine: Option<Engine>,
    /// Debian package of the kernel: a linux-image (meta-)package for QEMU, or user-mode-linux. Without this and
    /// without a filter or a command, the tier's cases are divided between two guests, at once.
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
            engine: None,
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

impl Args {
    /// The whole tier, with an engine that was chosen before.
    pub(crate) fn with(engine: Engine) -> Self {
        Self {
            engine: Some(engine),
            ..Self::default()
        }
    }

    /// What gives the tier on the same engine again.
    pub(crate) fn command_line(&self) -> String {
        let engine = self.engine.as_ref().and_then(clap::ValueEnum::to_possible_value);
        let option = engine.map(|engine| format!(" --engine {}", engine.get_name()));
        format!("cargo xtask vm{}", option.unwrap_or_default())
    }
}

/// The door: one command in the guest (its exit code becomes ours), or the tier.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.command.is_empty() {
        let tier = match (&args.kernel, &args.filter) {
            (None, None) => {
                let engine = match args.engine {
                    Some(engine) => engine,
                    None => choose(args)?,
                };
                division(args, engine)?
            }
            (kernel, filter) => {
                let kernel = kernel.as_deref().unwrap_or(DEFAULT_KERNEL);
                tier::named(machine(args, kernel)?, filter.as_deref())
            }
        };
        return tier::run(tier);
    }
    let machine = machine(args, args.kernel.as_deref().unwrap_or(DEFAULT_KERNEL))?;
    match engine::run(&machine, &std::env::current_dir()?, &args.command)? {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

/// The engine for this machine, said aloud with the reason.
pub(crate) fn choose(args: &Args) -> Result<Engine> {
    let (engine, why) = match std::env::var(ENGINE_VARIABLE) {
        Ok(name) => {
            let engine = <Engine as clap::ValueEnum>::from_str(&name, false).map_err(|_| {
                anyhow::anyhow!("{ENGINE_VARIABLE}={name}: neither \"user-mode\" nor \"qemu\"")
            })?;
            (engine, format!("{ENGINE_VARIABLE} asks for it"))
        }
        Err(_) => match probe::user_mode(machine(args, USER_MODE)?)? {
            Verdict::Runs(time) => {
                let why = format!("user-mode-linux runs here, booted in {:.1} s", time.as_secs_f32());
                (Engine::UserMode, why)
            }
            Verdict::Fails(why) => (Engine::Qemu, format!("user-mode-linux does not run here: {why}")),
        },
    };
    let what = match engine {
        Engine::UserMode => {
            "QEMU runs the cases that need nf_tables, user-mode-linux those with the older kind of iptables; \
             about 11 minutes on two cores"
        }
        Engine::Qemu => {
            "QEMU runs all cases, in two guests, those with the older kind of iptables too; \
             about 25 minutes on two cores"
        }
    };
    println!("vm: {what} ({why})");
    Ok(engine)
}

fn division(args: &Args, engine: Engine) -> Result<tier::Tier> {
    let stock = machine(args, DEFAULT_KERNEL)?;
    match engine {
        Engine::UserMode => Ok(tier::beside_user_mode(stock, machine(args, USER_MODE)?)),
        Engine::Qemu => tier::emulated(stock, machine(args, DEFAULT_KERNEL)?),
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
